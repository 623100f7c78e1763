"""`explain`: the story of a delegation, with a sentence for each decision."""

from typing import TYPE_CHECKING, Any

from fallbackd.core.records import Delegation, PutStory
from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.explain import METHOD as METHOD
from fallbackd_client.wire.methods.explain import Params, Result, Step

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.delegation(params.delegation)
    story = await engine.story(params.delegation)
    return Result(
        delegation=found.delegation,
        state=found.state,
        requested=found.requested,
        served_by=found.served_by,
        questions=tuple(shapes.question(one) for one in found.questions),
        decisions=tuple(_step(one, found) for one in story),
    )


def _step(one: PutStory, found: Delegation) -> Step:
    return Step(
        at=one.at,
        event=one.event,
        text=one.outcome,
        attempt=one.attempt,
        candidates=tuple(shapes.verdict(each) for each in one.verdicts),
        policy=one.policy,
        evidence=_evidence(one, found),
        changes=one.changes,
        effects=one.effects,
    )


def _evidence(one: PutStory, found: Delegation) -> dict[str, Any] | None:  # of any shape
    """What was printed, and the signature by which it was understood."""
    if not one.evidence:
        return None
    failures = [
        each.failure
        for each in found.attempts
        if each.failure is not None
        and each.failure.evidence == one.evidence
        and one.attempt in (None, each.attempt)
    ]
    if not failures:
        return {"text": one.evidence}
    last = failures[-1]
    return {
        "reason": last.reason.value,
        "scope": last.scope,
        "signature": last.signature,
        "confidence": last.confidence,
        "text": one.evidence,
    }
