"""`delegation.get`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.delegation_get import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_get import Params
from fallbackd_client.wire.shapes import Delegation as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.delegation(params.delegation)
    return shapes.answered(found, await engine.kept_answer(found))
