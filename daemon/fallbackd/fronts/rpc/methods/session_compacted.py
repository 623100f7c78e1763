"""`session.compacted`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.session_compacted import METHOD as METHOD
from fallbackd_client.wire.methods.session_compacted import Params
from fallbackd_client.wire.shapes import SessionView as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    await engine.compact_session(params.session)
    return shapes.session(await engine.session(params.session))
