"""`daemon.shutdown`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.daemon_shutdown import METHOD as METHOD
from fallbackd_client.wire.methods.daemon_shutdown import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    running = len(engine.snapshot().active)
    session.host.shut_down(stop_work=params.stop_work)
    return Result(running=running)
