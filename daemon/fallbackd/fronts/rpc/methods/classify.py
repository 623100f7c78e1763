"""`classify`. A large text is read beside the loop: nobody else waits for it."""

from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.classify import METHOD as METHOD
from fallbackd_client.wire.methods.classify import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

LARGE_CHARS = 16_384


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    evidence = shapes.evidence(params.evidence)
    judge = partial(
        engine.classify,
        evidence,
        backend=params.backend,
        kind=params.kind,
        now_at=params.now_at,
        timezone=params.timezone,
    )
    is_large = len(evidence.text) > LARGE_CHARS or evidence.body is not None
    found = await anyio.to_thread.run_sync(judge) if is_large else judge()
    return shapes.failure(found)
