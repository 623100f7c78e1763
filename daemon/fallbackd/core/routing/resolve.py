"""
Resolution: the candidate that is used now, and a verdict with a reason for each.

Healthy before cooldown; within a state the order of the chain. A candidate that came back by
the clock alone (unproven, or in cooldown) is used by one leased trial at a time.
"""

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct, structs

from fallbackd.core.health import Health, early_trial_at, is_leased, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Entry, Policy
from fallbackd.core.reasons import WORDS, Reason
from fallbackd.core.records import Meter, Verdict, VerdictWord
from fallbackd.core.routing.candidates import (
    HANDED_BACK,
    Candidate,
    Choice,
    Configured,
    chain_of,
    wanted,
)
from fallbackd.core.routing.looking import Request, look
from fallbackd.core.scopes import find_backend, scopes_of

NEVER_BY_TIME: frozenset[VerdictWord] = frozenset({"context", "must_differ", "consent"})
"""Verdicts that do not change when an outage ends."""


def awaited(verdicts: Sequence[Verdict], *, asked: Set[BackendId] = frozenset()) -> Verdict | None:
    """The first candidate before the one that was asked that is out for a time that passes."""
    for one in verdicts:
        if one.verdict == "chosen" or one.backend in asked:
            return None
        is_reason = one.until_at is not None and one.reason in WORDS
        if is_reason and Reason(one.reason or "").row.is_over_by_itself:
            return one
    return None


class Resolved(Struct, frozen=True, kw_only=True):
    choice: Choice | None
    verdicts: tuple[Verdict, ...]
    retry_at: float | None = None
    """Time when the first candidate is available again, where it is known."""
    stated_at: float | None = None
    """The earliest time that a provider stated, of candidates that were not tried."""
    in_trial: bool = False
    """An untried candidate is under trial: its verdict is worth waiting for."""


def without_choice(resolved: Resolved, why: str) -> Resolved:
    """Withdraw the choice; `why` names the limit that forbids the chosen candidate."""
    verdicts = tuple(
        structs.replace(
            one, verdict="healthy" if one.state == "healthy" else "cooldown", reason=why
        )
        if one.verdict == "chosen"
        else one
        for one in resolved.verdicts
    )
    return structs.replace(resolved, choice=None, verdicts=verdicts)


def resolve(
    candidates: tuple[Entry, ...],
    request: Request,
    policy: Policy,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> Resolved:
    seen = [
        look(entry, found, request, policy, health, meters, now=now)
        for entry, found in _members(candidates, policy, health, now=now)
    ]
    best = _best(seen, request)
    if best is None and request.last_resort:
        best = _last_resort(seen, policy, health, now=now)
        if best is not None:
            seen[best] = _early(seen[best], policy, health, now=now)
    away = [one for one in seen if one.returns_at is not None]
    retry_at, stated_at = _instants(away)
    return Resolved(
        choice=None if best is None else seen[best].choice,
        verdicts=_verdicts(seen, best, request),
        retry_at=retry_at,
        stated_at=stated_at,
        in_trial=any(one.verdict.verdict == "in_trial" for one in away),
    )


def _members(
    candidates: tuple[Entry, ...], policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[tuple[Entry, Configured | None], ...]:
    """The candidates that are looked at, with what the configuration says of each."""
    chain = chain_of(policy, candidates)
    if not chain.has_stand_ins:
        return chain.members
    kept = wanted((entry for entry, _ in chain.members), policy, health, now=now)
    return tuple(one for one in chain.members if one[0] in kept)


def _instants(away: list[Candidate]) -> tuple[float | None, float | None]:
    """
    Return when the first candidate is available again, by all that is known and by what providers
    stated.
    """
    if not away:
        return None, None
    known = [(one.returns_at, one) for one in away if one.returns_at is not None]
    retry = [at for at, one in known if one.verdict.verdict not in NEVER_BY_TIME]
    stated = [at for at, one in known if one.stated and one.verdict.verdict == "rate_limited"]
    return min(retry, default=None), min(stated, default=None)


def _best(seen: list[Candidate], request: Request) -> int | None:
    """The first one of the best rank; of that rank the preferred one before the others."""
    usable = [
        (_rank(one, index), index) for index, one in enumerate(seen) if one.choice is not None
    ]
    if not usable:
        return None
    best, first = min(usable)
    if request.preferred is None:
        return first
    alike = (index for rank, index in usable if rank == best)
    return next((index for index in alike if _is_preferred(seen[index], request)), first)


def _rank(one: Candidate, index: int) -> int:
    """A caller that asks for its session first gets the work back, also beside healthy backends."""
    return 0 if index == 0 and one.rank == HANDED_BACK else one.rank


def _verdicts(seen: list[Candidate], best: int | None, request: Request) -> tuple[Verdict, ...]:
    """
    Return the verdicts on what was seen, with the choice at `best` and what was passed over for it.
    """
    verdicts = [one.verdict for one in seen]
    if best is not None:
        chosen = verdicts[best]
        verdicts[best] = structs.replace(chosen, verdict="chosen")
        if chosen.backend == request.preferred:
            verdicts[:best] = [_passed_over(one, request.preferred) for one in verdicts[:best]]
    return tuple(verdicts)


def _passed_over(one: Verdict, preferred: BackendId) -> Verdict:
    if one.verdict not in ("healthy", "unproven"):
        return one
    why = f"the session stays with {preferred}, which answered it last"
    return structs.replace(one, verdict="affinity", reason=why)


def _is_preferred(one: Candidate, request: Request) -> bool:
    verdict = one.verdict
    return verdict.backend == request.preferred and request.preferred_model in (None, verdict.model)


def _outages(
    one: Candidate, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> list[Health]:
    backend = find_backend(policy, one.verdict.backend)
    if backend is None:
        return []
    scopes = scopes_of(backend, one.verdict.model, one.verdict.credential)
    return [
        record
        for scope in scopes
        if (record := health.get(scope)) is not None
        and ((seen := view(record, now=now)).state != "healthy" or seen.unproven)
    ]


def _last_resort(
    seen: list[Candidate], policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> int | None:
    """The first candidate on which an early trial is due. Only where no candidate is usable."""
    for index, one in enumerate(seen):
        if one.verdict.verdict != "rate_limited" or one.over_budget:
            continue
        records = _outages(one, policy, health, now=now)
        if any(is_leased(record, now=now) for record in records):
            continue
        out = [r for r in records if view(r, now=now).state in ("rate_limited", "broken")]
        due = [early_trial_at(r, last_resort_s=policy.defaults.last_resort_s) for r in out]
        if all(at is not None and at <= now for at in due):
            return index
    return None


def _early(
    one: Candidate, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> Candidate:
    backend = find_backend(policy, one.verdict.backend)
    assert backend is not None
    return structs.replace(
        one,
        choice=Choice(
            entry=one.entry,
            backend=backend,
            model=one.verdict.model,
            credential=one.verdict.credential,
            trial_scopes=tuple(r.scope for r in _outages(one, policy, health, now=now)),
        ),
    )
