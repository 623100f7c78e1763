"""`daemon.ping`. Kept short: it is what callers time."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.daemon_ping import METHOD as METHOD
from fallbackd_client.wire.methods.daemon_ping import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    host = session.host
    return Result(
        version=host.version,
        pid=host.pid,
        at=engine.clock.now(),
        state="draining" if host.is_draining else "running",
    )
