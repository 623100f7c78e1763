"""`delegation.cancel`."""

from typing import TYPE_CHECKING

from fallbackd.core.ids import DelegationId
from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.delegation_cancel import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_cancel import Params
from fallbackd_client.wire.shapes import Delegation as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.cancel(DelegationId(params.delegation))
    return shapes.answered(found, await engine.kept_answer(found))
