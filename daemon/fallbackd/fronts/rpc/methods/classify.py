"""`classify`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.classify import METHOD as METHOD
from fallbackd_client.wire.methods.classify import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    return shapes.failure(
        engine.classify(
            shapes.evidence(params.evidence),
            backend=params.backend,
            kind=params.kind,
            now_at=params.now_at,
            timezone=params.timezone,
        )
    )
