"""`session.list`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.session_list import METHOD as METHOD
from fallbackd_client.wire.methods.session_list import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 100


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.sessions(limit=params.limit or DEFAULT_LIMIT)
    return Result(sessions=tuple(shapes.session(one) for one in found))
