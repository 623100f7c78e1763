"""`delegation.wait`."""

from typing import TYPE_CHECKING

from fallbackd.core.ids import DelegationId
from fallbackd.fronts.rpc.host import Session
from fallbackd.fronts.rpc.methods.delegate import answer
from fallbackd_client.wire.methods.delegation_wait import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_wait import Params
from fallbackd_client.wire.shapes import Delegation as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found, is_over = await engine.wait(
        DelegationId(params.delegation), until="finished", timeout_s=params.timeout_s
    )
    return await answer(engine, found, is_over=is_over, strict=params.strict_wait)
