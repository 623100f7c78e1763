"""`session.end`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.session_end import METHOD as METHOD
from fallbackd_client.wire.methods.session_end import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    await engine.end_session(params.session)
    return Result(session=params.session, ended=True)
