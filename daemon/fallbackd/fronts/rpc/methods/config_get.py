"""`config.get`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.config_get import METHOD as METHOD
from fallbackd_client.wire.methods.config_get import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    now = session.host.config()
    return Result(
        config=now.config,
        path=now.path,
        loaded_at=now.loaded_at,
        errors=shapes.problems(now.errors),
        warnings=shapes.problems(now.warnings),
    )
