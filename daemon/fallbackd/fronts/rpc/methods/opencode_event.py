"""`opencode.event`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd.fronts.rpc.methods.opencode_announce import link_of
from fallbackd_client.wire.methods.opencode_event import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_event import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    link = link_of(session)
    if link is not None:
        link.hear(params.event, directory=params.directory or "")
    return Result(heard=link is not None)
