"""`delegation.list`. Answers themselves are left to `delegation.get`."""

from typing import TYPE_CHECKING

import msgspec

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.delegation_list import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_list import Params, Result
from fallbackd_client.wire.shapes import Delegation

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 100
MAX_BYTES = 8 * 1024 * 1024
"""Of all delegations in one answer."""


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.delegations(
        session=params.session, state=params.state, limit=params.limit or DEFAULT_LIMIT
    )
    shown: list[Delegation] = []
    size_bytes = 0
    for one in found:
        shown.append(shapes.delegation(one))
        size_bytes += len(msgspec.json.encode(shown[-1]))
        if size_bytes > MAX_BYTES:
            break
    return Result(delegations=tuple(shown), truncated=len(shown) < len(found))
