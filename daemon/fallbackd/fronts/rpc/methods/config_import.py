"""`config.import`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.config_import import METHOD as METHOD
from fallbackd_client.wire.methods.config_import import ImportLeft, ImportTaken, Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await session.host.import_config(path=params.path, env=params.env, write=params.write)
    return Result(
        source=found.source,
        toml=found.toml,
        taken=tuple(ImportTaken(what=what, to=to) for what, to in found.taken),
        left=tuple(ImportLeft(what=what, why=why) for what, why in found.left),
        written=found.written,
    )
