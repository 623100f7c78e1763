"""`daemon.drain`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.daemon_drain import METHOD as METHOD
from fallbackd_client.wire.methods.daemon_drain import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    await session.host.drain()
    return Result(running=len(engine.snapshot().active))
