"""State of one candidate: its verdict, and whether a call can be made there now."""

from collections.abc import Mapping

from msgspec import Struct, structs

from fallbackd.core import meter
from fallbackd.core.figures import Figure, nearest
from fallbackd.core.health import Health, Outage, View, is_leased, severity, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.meter import figures_of
from fallbackd.core.policy import OPENCODE, Backend, Entry, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Meter, Verdict, VerdictWord
from fallbackd.core.routing.candidates import (
    FREE,
    Candidate,
    Configured,
    Limits,
    configured,
    forbidden,
)
from fallbackd.core.scopes import backend_scope, is_missing_model, scopes_of, worst

# Choice of the credential of a backend that makes the next call.
#
# Of those that are free, the strategy picks one; where none is free, the one that is nearest to it.


THROTTLE_MEMORY_S = 60.0
"""A second throttle within this long after the first one marks."""


def pick(
    backend: Backend,
    model: str | None,
    health: Mapping[ScopeId, Health],
    used: Meter | None,
    *,
    only: str | None = None,
    kept: str | None = None,
    without: frozenset[str] = frozenset(),
    now: float,
    luck: float,
) -> str | None:
    """
    The label of one credential; None where the backend has none, or none is left.

    Args:
        only: This one, whatever the strategy says.
        kept: This one while it is free, whatever the strategy says.
        without: Those that have failed already for the work at hand.
        luck: In [0, 1), for the strategy `random`.
    """
    if only in backend.credentials:
        return only
    labels = tuple(one for one in backend.credentials if one not in without)
    if len(labels) < 2:
        return next(iter(labels), None)
    ranks = {label: _rank(backend, model, label, health, now=now) for label in labels}
    free = tuple(label for label in labels if ranks[label][0] == 0)
    if not free:
        return min(labels, key=ranks.__getitem__)
    if kept in free:
        return kept
    return _by_strategy(backend, free, used, luck=luck)


def _rank(
    backend: Backend, model: str | None, label: str, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[int, bool, float]:
    """A sort key: 0 is free; then severity, whether a trial runs, and when it is available."""
    scopes = scopes_of(backend, model, label)
    found, _ = worst(health, scopes, now=now)
    in_trial = any(
        is_leased(health.get(scope), now=now) and view(health.get(scope), now=now).unproven
        for scope in scopes
    )
    is_free = found.state == "healthy" and not in_trial
    until_at = found.until_at if found.state in ("rate_limited", "broken") else None
    never = float("inf") if found.state == "broken" else 0.0
    return (0 if is_free else max(1, severity(found)), in_trial, until_at or never)


def _by_strategy(
    backend: Backend, free: tuple[str, ...], used: Meter | None, *, luck: float
) -> str:
    counts = {} if used is None else dict(used.credential_uses)
    match backend.credential_strategy:
        case "fill_first":
            return free[0]
        case "random":
            return free[min(int(luck * len(free)), len(free) - 1)]
        case "least_used":
            return min(free, key=lambda label: counts.get(label, 0))
        case "round_robin":
            last = None if used is None else used.last_credential
            if last not in backend.credentials:
                return free[0]
            at = backend.credentials.index(last)
            turn = (*backend.credentials[at + 1 :], *backend.credentials[: at + 1])
            return next(label for label in turn if label in free)


def usable(
    backend: Backend, model: str | None, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[str, ...]:
    """Return the credentials that may be used now, freely or as second choice."""
    return tuple(
        label
        for label in backend.credentials
        if worst(health, scopes_of(backend, model, label), now=now)[0].state
        in ("healthy", "cooldown")
    )


LONGEST_TRIAL_S = 300.0
"""A trial without a limit of its own is decided by then: the first answer of batch work."""


class Request(Struct, frozen=True, kw_only=True):
    """The request to a resolution besides the candidates."""

    tried: frozenset[str] = frozenset()
    """Keys (`candidate_key`) of candidates that this delegation has tried."""
    same_as_failed: frozenset[str] = frozenset()
    prompt_tokens: int | None = None
    larger_than: int | None = None
    """After an overflow: only candidates with more context than this many tokens."""
    not_provider: str | None = None
    """After a malformed request: only another provider than this one."""
    preferred: BackendId | None = None
    """Session affinity, or the way back up: before the others of its state."""
    preferred_model: str | None = None
    """The one of its models, where the chain has several."""
    preferred_credential: str | None = None
    """The one of its credentials, while it is free."""
    limits: Limits = FREE
    local_only: bool = False
    """This machine has no network: only candidates on this machine."""
    at_server: bool = False
    """Models of a running opencode server are asked for, which need no program of ours."""
    is_batch: bool = False
    """It leaves the reserve of plans to interactive work."""
    last_resort: bool = False
    """A single early trial may be made where no candidate is usable."""
    credential: str | None = None
    """Once more with this one, where it is configured."""
    without: frozenset[str] = frozenset()
    """Credentials that must not make the call."""
    luck: float = 0.5


class _Facts(Struct, frozen=True, kw_only=True):
    """Facts about a candidate of which something is known."""

    of: Configured
    scopes: tuple[ScopeId, ...]
    state: View
    """The worst of its scopes."""
    record: Health | None
    """The record of that scope."""
    budget_until_at: float | None
    """End of the time for which our own cap is reached."""

    @property
    def outage(self) -> Outage | None:
        return None if self.record is None else self.record.outage

    @property
    def is_capped(self) -> bool:
        """Nothing but our own cap is in the way."""
        return self.budget_until_at is not None and self.state.state in ("healthy", "cooldown")

    @property
    def reason(self) -> str | None:
        if self.is_capped:
            return Reason.LOCAL_BUDGET.value
        return None if self.outage is None else self.outage.reason.value

    @property
    def until_at(self) -> float | None:
        return self.budget_until_at if self.is_capped else self.state.until_at

    def verdict(
        self, word: VerdictWord, why: str | None, *, detail: str | None, until_at: float | None
    ) -> Verdict:
        plain, state = self.of.healthy.verdict, self.state.state
        return structs.replace(
            plain,
            verdict=word,
            reason=why,
            detail=detail,
            state="rate_limited" if self.is_capped else state,
            until_at=until_at,
            scope=None if self.record is None or state == "healthy" else self.record.scope,
        )


No = tuple[VerdictWord, str | None]
"""The reason why a candidate is not used: a verdict with a sentence."""

_TRIED: No = ("tried", "tried already by this delegation")


def look(
    entry: Entry,
    found: Configured | None,
    request: Request,
    policy: Policy,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> Candidate:
    """
    Args:
        found: What the configuration says of the entry; None: its backend is not configured.
    """
    if found is None:
        return _not_configured(entry)
    backend = found.backend
    if backend.credentials:
        label = _credential_of(found, request, health, meters, now=now)
        found = configured(policy, entry, label) or found
    scopes = found.scopes
    if found.has_own_scopes or request.at_server:
        scopes = _scopes_now(found, request, health)
    state, record = worst(health, scopes, now=now)
    budget_until_at = None
    if backend.hourly_cap is not None:
        budget_until_at = meter.over_cap_until(
            meters.get(backend.id), backend.hourly_cap, now=now, unit=backend.cap_unit
        )
    wall = _wall(found, request, policy, meters, now=now)
    no = _by_request(found, request)
    if no is None and record is None and budget_until_at is None and wall is None:
        return found.healthy  # the commonest case
    facts = _Facts(
        of=found, scopes=scopes, state=state, record=record, budget_until_at=budget_until_at
    )
    seen = _seen(facts, no, policy, health, now=now)
    return seen if wall is None or seen.choice is None else _before(seen, wall)


class _Wall(Struct, frozen=True, kw_only=True):
    """The window of a plan that is nearly used up."""

    figure: Figure
    key: str
    """Key of the configuration that says when."""
    is_reserved: bool
    """The rest is for other work; else there may be a better candidate."""


def _wall(
    found: Configured,
    request: Request,
    policy: Policy,
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> _Wall | None:
    """Return the wall that new work does not run into. What is not known, or old, is none."""
    backend, at_percent = found.backend, found.entry.at_percent
    reserve = policy.defaults.reserve_percent if request.is_batch else 0.0
    if request.preferred == backend.id:
        at_percent = None  # its session has begun there
    if not reserve and at_percent is None:
        return None
    known = figures_of(backend, policy, meters)
    label = found.healthy.verdict.credential
    for percent, key, is_reserved in (
        (100.0 - reserve if reserve else None, "reserve_percent", True),
        (at_percent, "at_percent", False),
    ):
        if percent is None:
            continue
        figure = nearest(known, percent, model=found.model, credential=label, now=now)
        if figure is not None:
            return _Wall(figure=figure, key=key, is_reserved=is_reserved)
    return None


def _before(seen: Candidate, wall: _Wall) -> Candidate:
    """A candidate that could be used, before the wall of its plan."""
    plain, used = seen.verdict, f"{wall.figure.used_percent:.0f} % of its plan is used"
    if not wall.is_reserved:
        verdict = structs.replace(plain, reason=f"{used}: second choice ({wall.key})")
        return structs.replace(seen, verdict=verdict, rank=seen.rank or 1)
    verdict = structs.replace(
        plain,
        verdict="budget",
        reason=f"{used}: the rest is for interactive work ({wall.key})",
        state="rate_limited",
        until_at=wall.figure.resets_at,
    )
    return structs.replace(
        seen, verdict=verdict, choice=None, returns_at=wall.figure.resets_at, over_budget=True
    )


def _seen(
    facts: _Facts,
    no: No | None,
    policy: Policy,
    health: Mapping[ScopeId, Health],
    *,
    now: float,
) -> Candidate:
    if no is _TRIED:
        return _refused(facts, "tried", facts.reason or no[1])
    no = no or _by_health(facts)
    return _in_trial(facts, policy, health, now=now) if no is None else _refused(facts, *no)


def _not_configured(entry: Entry) -> Candidate:
    verdict = Verdict(
        backend=entry.backend,
        model=entry.model,
        verdict="not_configured",
        reason="no such backend is configured",
        tier=entry.tier,
    )
    return Candidate(entry=entry, choice=None, verdict=verdict)


def _credential_of(
    found: Configured,
    request: Request,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> str | None:
    return pick(
        found.backend,
        found.model,
        health,
        meters.get(found.backend.id),
        only=request.credential,
        kept=request.preferred_credential if request.preferred == found.backend.id else None,
        without=request.without,
        now=now,
        luck=request.luck,
    )


def _scopes_now(
    found: Configured, request: Request, health: Mapping[ScopeId, Health]
) -> tuple[ScopeId, ...]:
    """The scopes that count by what is known of them."""
    scopes = found.scopes
    if found.entry.tier == "model":
        scopes = tuple(one for one in scopes if not is_missing_model(health.get(one)))
    if request.at_server:
        return tuple(one for one in scopes if not _is_missing_program(health.get(one)))
    if found.backend.implicit and _is_missing_program(health.get(backend_scope(OPENCODE))):
        return (*scopes, backend_scope(OPENCODE))  # whose program it would be
    return scopes


def _in_trial(
    facts: _Facts, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> Candidate:
    """A candidate that may be used, unless another call is its one trial."""
    trial_scopes: tuple[ScopeId, ...] = ()
    if facts.record is not None:
        trial_scopes = _unproven(facts.scopes, health, now=now)
    leased = [health[scope] for scope in trial_scopes if is_leased(health[scope], now=now)]
    if not leased:
        return _usable(facts, trial_scopes)
    decided_at = max(_decided_at(one, facts.of.backend, policy) for one in leased)
    until_at = facts.until_at or decided_at
    refused = _refused(facts, "in_trial", facts.reason, until_at=until_at)
    return structs.replace(refused, returns_at=until_at)  # at the latest


def _unproven(
    scopes: tuple[ScopeId, ...], health: Mapping[ScopeId, Health], *, now: float
) -> tuple[ScopeId, ...]:
    """The scopes that a trial has to prove."""
    return tuple(
        scope
        for scope in scopes
        if (one := health.get(scope)) is not None and view(one, now=now).unproven
    )


def _by_request(found: Configured, request: Request) -> No | None:
    """
    Return what rules a candidate out whatever its health: settings, what was tried, the rules.
    """
    if found.never is not None:
        return found.never
    if found.key in request.tried:
        return _TRIED
    if found.same_as in request.same_as_failed:
        return "same_as_failed", "skipped: same account and model as the one that failed"
    size = found.context_tokens
    if size is not None and (why := _too_small(size, request)):
        return "context", why
    backend = found.backend
    if (no := forbidden(found.entry, backend, found.model, request.limits)) is not None:
        return no
    if request.not_provider == (backend.provider or backend.id):
        return "same_as_failed", "skipped: same provider as the one that rejected the request"
    if request.local_only and not backend.is_local:
        return "local_network", "this machine has no network"
    return None


def _by_health(facts: _Facts) -> No | None:
    """Return what keeps a candidate from use now: a pause, an outage, our own cap."""
    outage = facts.outage
    match facts.state.state:
        case "paused":
            pause = None if facts.record is None else facts.record.pause
            return "paused", (pause.note if pause else None) or "paused by a person"
        case "broken":
            return "broken" if outage is None else outage.reason.row.verdict, facts.reason
        case "rate_limited":
            return "rate_limited", facts.reason
    return None if facts.budget_until_at is None else ("budget", facts.reason)


def _refused(
    facts: _Facts, verdict: VerdictWord, why: str | None, *, until_at: float | None = None
) -> Candidate:
    outage = facts.outage
    is_out = facts.is_capped or facts.state.state in ("rate_limited", "broken")
    return Candidate(
        entry=facts.of.entry,
        choice=None,
        verdict=facts.verdict(
            verdict,
            why,
            detail=None if outage is None else outage.detail,
            until_at=until_at or facts.until_at,
        ),
        returns_at=facts.until_at if is_out else None,
        stated=not facts.is_capped and outage is not None and outage.source == "provider",
        over_budget=facts.budget_until_at is not None,
    )


def _usable(facts: _Facts, trial_scopes: tuple[ScopeId, ...]) -> Candidate:
    healthy, outage = facts.of.healthy, facts.outage
    assert healthy.choice is not None
    is_recovering = facts.state.state == "cooldown"
    verdict: VerdictWord = "healthy"
    if is_recovering or trial_scopes:
        verdict = "cooldown" if is_recovering else "unproven"
    is_proven = verdict == "healthy"
    return structs.replace(
        healthy,
        choice=structs.replace(healthy.choice, trial_scopes=trial_scopes),
        verdict=facts.verdict(
            verdict,
            None if is_proven else facts.reason,
            detail=None if is_proven or outage is None else outage.detail,
            until_at=facts.until_at,
        ),
        rank=healthy.rank or int(is_recovering),
    )


def _is_missing_program(record: Health | None) -> bool:
    return (
        record is not None
        and record.outage is not None
        and record.outage.reason is Reason.NOT_INSTALLED
    )


def _too_small(size: int, request: Request) -> str | None:
    if request.prompt_tokens is not None and request.prompt_tokens > size:
        return f"context too large: {request.prompt_tokens} tokens do not fit into {size}"
    if request.larger_than is not None and size <= request.larger_than:
        return f"context too large: it did not fit into {request.larger_than} tokens before"
    return None


def _decided_at(record: Health, backend: Backend, policy: Policy) -> float:
    """Return when the trial of a scope is decided at the latest."""
    assert record.trial is not None
    limit_s = backend.first_answer_s or policy.defaults.first_answer_s or LONGEST_TRIAL_S
    return record.trial.expires_at or record.trial.leased_at + limit_s
