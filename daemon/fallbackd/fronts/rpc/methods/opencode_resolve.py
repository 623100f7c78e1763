"""`opencode.resolve`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd.fronts.rpc.methods.opencode_announce import front_of, link_of
from fallbackd_client.wire.methods.opencode_resolve import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_resolve import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    link = link_of(session)
    found = await front_of(session).redirect(
        server=(params.server or "") if link is None else link.url,
        session=params.session,
        directory=params.directory or "",
        agent=params.agent,
        model=params.model,
    )
    return Result(
        model=found.model or params.model,
        redirected=found.model is not None,
        reason=found.reason,
        retry_at=found.retry_at,
        candidates=tuple(shapes.verdict(one) for one in found.verdicts),
    )
