"""`config.reload`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.config_reload import METHOD as METHOD
from fallbackd_client.wire.methods.config_reload import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    is_changed = await session.host.reload_config()
    now = session.host.config()
    if now.errors:
        first = now.errors[0]
        place = f" at `{first.path}`" if first.path else ""
        raise RpcError(
            codes.CONFIG_INVALID,
            f"{now.path} was not taken{place}: {first.message}. The last good configuration stays"
            " in effect. Correct the file: it is read again by itself.",
            data={"errors": [{"path": one.path, "message": one.message} for one in now.errors]},
        )
    return Result(changed=is_changed, path=now.path, warnings=shapes.problems(now.warnings))
