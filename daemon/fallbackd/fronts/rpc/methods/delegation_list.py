"""`delegation.list`. Answers themselves are left to `delegation.get`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.delegation_list import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_list import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine

DEFAULT_LIMIT = 100


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.delegations(
        session=params.session, state=params.state, limit=params.limit or DEFAULT_LIMIT
    )
    return Result(delegations=tuple(shapes.delegation(one) for one in found))
