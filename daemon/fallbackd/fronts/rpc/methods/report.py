"""`report`."""

from typing import TYPE_CHECKING

from fallbackd.core.callers.lease import Resolution
from fallbackd.core.protocol import Usage
from fallbackd.fronts.rpc import chains, shapes, turns
from fallbackd.fronts.rpc.health_view import health_entry
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.report import METHOD as METHOD
from fallbackd_client.wire.methods.report import Params, Result
from fallbackd_client.wire.shapes import CandidateVerdict

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    backend = params.backend or ""  # `normalised` has seen that there is one
    used = params.usage
    answer = await engine.report(
        session=params.session,
        backend=backend,
        model=params.model,
        credential=params.credential,
        attempt=params.attempt,
        lease=params.lease,
        outcome=params.outcome,
        started_at=params.started_at,
        evidence=None if params.evidence is None else shapes.evidence(params.evidence),
        usage=None
        if used is None
        else Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_usd=used.cost_usd,
        ),
        failover=turns.failover_of(params.turn),
        next_lease=params.next_lease,
        owner=shapes.owner(params.owner, session.peer_pid),
        role=params.role,
        chain=chains.entries(params.chain, engine.settings.policy),
        prompt_tokens=params.prompt_tokens,
        allow_metered=params.allow_metered,
        differs_from=params.differs_from,
    )
    following = answer.next
    return Result(
        failure=shapes.failure(answer.failure),
        health={
            backend: health_entry(
                engine.snapshot(), engine.settings.policy, backend, now=engine.clock.now()
            )
        },
        next=_next(following),
        position=None if following is None else following.position,
        candidates=tuple(shapes.verdict(one) for one in answer.candidates),
        retry_at=answer.retry_at if following is None else None,
        lease=shapes.lease(following, asked=params.next_lease),
        ignored=answer.ignored,
        turn=turns.word_of(answer.failover),
        bound=None if answer.halt is None else answer.halt.bound,
        why=None if answer.halt is None else answer.halt.why,
    )


def _next(one: Resolution | None) -> CandidateVerdict | None:
    if one is None or one.backend is None:
        return None
    chosen = [each for each in one.candidates if each.verdict == "chosen"]
    if chosen:
        return shapes.verdict(chosen[0])
    return CandidateVerdict(backend=one.backend, verdict="chosen", model=one.model, tier=one.tier)
