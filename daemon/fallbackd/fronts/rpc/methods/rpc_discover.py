"""`rpc.discover`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.discover import encoded
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.rpc_discover import METHOD as METHOD
from fallbackd_client.wire.methods.rpc_discover import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    # Encoded once: it is large, and must not cost those beside the caller anything.
    return encoded(session.host.version)  # type: ignore[return-value]
