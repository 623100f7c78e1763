"""`config.check`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.config_check import METHOD as METHOD
from fallbackd_client.wire.methods.config_check import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await session.host.check_config(
        path=params.path, text=params.text, directory=params.directory
    )
    return Result(
        ok=not found.errors,
        path=found.path,
        errors=shapes.problems(found.errors),
        warnings=shapes.problems(found.warnings),
    )
