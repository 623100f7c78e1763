"""`resolve`."""

from typing import TYPE_CHECKING

import msgspec

from fallbackd.fronts.rpc import chains, shapes, turns
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.resolve import METHOD as METHOD
from fallbackd_client.wire.methods.resolve import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.resolve(
        session=params.session,
        role=params.role,
        backend=params.backend,
        chain=chains.entries(params.chain, engine.settings.policy),
        model=params.model,
        prompt_tokens=params.prompt_tokens,
        allow_metered=params.allow_metered,
        differs_from=params.differs_from,
        lease=params.lease,
        owner=shapes.owner(params.owner, session.peer_pid),
    )
    candidates = tuple(shapes.verdict(one) for one in found.candidates)
    if found.backend is None:
        raise RpcError(
            codes.REFUSED,
            _why(found.retry_at, is_empty=not candidates),
            data={
                "retry_at": found.retry_at,
                "candidates": msgspec.to_builtins(candidates),
            },
        )
    return Result(
        backend=found.backend,
        model=found.model,
        credential=found.credential,
        tier=found.tier,
        trigger=found.trigger,  # type: ignore[arg-type] # the same words, typed on the wire only
        candidates=candidates,
        position=found.position,
        lease=shapes.lease(found, asked=params.lease),
        turn=turns.word_of(found.failover),
    )


def _why(retry_at: float | None, *, is_empty: bool) -> str:
    if is_empty:
        return (
            "There is nobody to choose from: name a backend, a role or a chain, or configure the"
            ' chain that is meant otherwise: [chains] "*" = ["BACKEND", …].'
        )
    if retry_at is None:
        return (
            "Nobody is available, and time alone changes nothing: `candidates` says what to"
            " configure, or ask `health` for the reasons."
        )
    return "Nobody is available now. Try again at `retry_at`, or ask `health` for the reasons."
