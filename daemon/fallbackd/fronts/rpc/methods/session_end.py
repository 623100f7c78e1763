"""`session.end`. A session that is not known has ended already."""

from typing import TYPE_CHECKING

from fallbackd.engine.requests import Unknown
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.session_end import METHOD as METHOD
from fallbackd_client.wire.methods.session_end import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    try:
        await engine.end_session(params.session)
    except Unknown:
        return Result(session=params.session, ended=False)
    return Result(session=params.session, ended=True)
