"""The configuration: what is in effect, checked, imported, read again."""

from typing import TYPE_CHECKING, Any

from fallbackd.api import shapes
from fallbackd.api.errors import ApiError
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd_client.wire.methods.config import (
    CONFIG_CHECK,
    CONFIG_GET,
    CONFIG_IMPORT,
    CONFIG_RELOAD,
    ConfigCheckParams,
    ConfigCheckResult,
    ConfigGetParams,
    ConfigGetResult,
    ConfigImportParams,
    ConfigImportResult,
    ConfigReloadParams,
    ConfigReloadResult,
    ImportLeft,
    ImportTaken,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def config_get(engine: "Engine", params: ConfigGetParams, caller: Caller) -> ConfigGetResult:
    now = caller.host.config()
    return ConfigGetResult(
        config=now.config,
        path=now.path,
        loaded_at=now.loaded_at,
        errors=shapes.problems(now.errors),
        warnings=shapes.problems(now.warnings),
    )


async def config_check(
    engine: "Engine", params: ConfigCheckParams, caller: Caller
) -> ConfigCheckResult:
    found = await caller.host.check_config(
        path=params.path, text=params.text, directory=params.directory
    )
    return ConfigCheckResult(
        ok=not found.errors,
        path=found.path,
        errors=shapes.problems(found.errors),
        warnings=shapes.problems(found.warnings),
    )


async def config_import(
    engine: "Engine", params: ConfigImportParams, caller: Caller
) -> ConfigImportResult:
    found = await caller.host.import_config(path=params.path, env=params.env, write=params.write)
    return ConfigImportResult(
        source=found.source,
        toml=found.toml,
        taken=tuple(ImportTaken(what=what, to=to) for what, to in found.taken),
        left=tuple(ImportLeft(what=what, why=why) for what, why in found.left),
        written=found.written,
    )


async def config_reload(
    engine: "Engine", params: ConfigReloadParams, caller: Caller
) -> ConfigReloadResult:
    is_changed = await caller.host.reload_config()
    now = caller.host.config()
    if now.errors:
        first = now.errors[0]
        place = f" at `{first.path}`" if first.path else ""
        raise ApiError(
            "config_invalid",
            f"{now.path} was not taken{place}: {first.message}. The last good configuration stays"
            " in effect. Correct the file: it is read again by itself.",
            data={"errors": [{"path": one.path, "message": one.message} for one in now.errors]},
        )
    return ConfigReloadResult(
        changed=is_changed, path=now.path, warnings=shapes.problems(now.warnings)
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(CONFIG_GET, config_get),
    Handler(CONFIG_CHECK, config_check),
    Handler(CONFIG_IMPORT, config_import),
    Handler(CONFIG_RELOAD, config_reload),
)
