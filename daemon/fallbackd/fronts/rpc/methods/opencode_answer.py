"""`opencode.answer`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd.fronts.rpc.methods.opencode_announce import link_of
from fallbackd_client.wire.methods.opencode_answer import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_answer import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    link = link_of(session)
    if link is not None:
        link.answered(params.call, status=params.status, text=params.text, more=params.more)
    return Result(heard=link is not None)
