"""Callers that talk to a provider themselves: whom they may call, and what became of it."""

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from fallbackd.core.authority import PERSON, Authority
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.case import Case
from fallbackd.core.decision import Decision
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import LEASE_PREFIX, AttemptId, BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.work import retries
from fallbackd.engine import admission
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop, without_quotations
from fallbackd.engine.requests import Refused
from fallbackd.ports.store import Outlives

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def resolve(
    engine: "Engine",
    asked: ResolveRequested,
    *,
    lease: bool = False,
    outlives: Outlives = "machine",
    authority: Authority = PERSON,
) -> Resolution:
    """
    Args:
        asked: `differs_from` by any name; what is the daemon's to say is filled in.
        lease: The caller makes the call itself.
        outlives: What the lease has to outlive.

    Raises:
        Refused, Invalid: It cannot be asked like this.
    """
    await engine.readiness.look_at_candidates(
        backend=asked.backend, role=asked.role, chain=asked.chain
    )
    event = structs.replace(
        asked,
        differs_from=await _families(engine, asked.differs_from, authority),
        lease=_minted_lease(engine) if lease else None,
        luck=engine.world.luck(),
    )
    answer = _answered(await engine.handle(event, outlives=outlives))
    assert isinstance(answer, Resolution)
    return answer


async def report(
    engine: "Engine",
    seen: Reported,
    *,
    evidence: Evidence | None = None,
    asked: str = "",
    next_lease: bool = False,
    outlives: Outlives = "machine",
    authority: Authority = PERSON,
) -> ReportAnswer:
    """
    Args:
        seen: `differs_from` by any name; what is the daemon's to say is filled in.
        evidence: Of a failure: it is judged here.
        asked: The words of the request, of which nothing is kept where its provider repeats them.
        next_lease: The caller continues by itself with the next candidate.
        outlives: What the report has to outlive.

    Raises:
        Refused, Invalid: It cannot be reported like this.
    """
    failure = None
    if seen.outcome == "failure":
        await engine.follow_clock()  # what the evidence states counts from now
        failure = await _failure(engine, evidence, seen.backend, asked)
    is_network = failure is not None and failure.reason is Reason.NETWORK
    event = structs.replace(
        seen,
        failure=failure,
        has_route=not is_network or engine.world.has_route(),
        next_lease=_minted_lease(engine) if next_lease else None,
        differs_from=await _families(engine, seen.differs_from, authority),
        luck=engine.world.luck(),
    )
    answer = _answered(await engine.handle(event, outlives=outlives))
    assert isinstance(answer, ReportAnswer)
    return answer


def may_retry(engine: "Engine") -> bool:
    """Test whether the host's budget has room for one more call of the same candidate."""
    now = engine.clock.now()
    return retries.may_retry(Case(engine.store.peek(), engine.settings.policy, now=now))


def _answered(decision: Decision) -> object:
    if decision.rejection is not None:
        raise Refused(decision.rejection)
    return decision.answer


async def _families(
    engine: "Engine", names: tuple[str, ...] | None, authority: Authority
) -> tuple[str, ...] | None:
    return await admission.families(engine.store, engine.settings.policy, names or (), authority)


def _minted_lease(engine: "Engine") -> AttemptId:
    return AttemptId(f"{LEASE_PREFIX}{engine.world.mint()}")


async def _failure(
    engine: "Engine", evidence: Evidence | None, backend: BackendId, asked: str
) -> Failure:
    found = None
    if evidence is not None:
        judging = partial(judged, engine, evidence, backend=backend)
        found = await off_the_loop(
            evidence,
            lambda: without_quotations(judging(), asked),
            beside=len(asked),
        )
    return found or make_failure(
        Reason.UNKNOWN,
        now=engine.clock.now(),
        confidence="text",
        signature="fallbackd/reported",
        evidence="reported by a caller without evidence that tells more",
    )
