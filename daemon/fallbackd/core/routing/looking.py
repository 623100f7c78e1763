"""What is known of one candidate: its verdict, and whether a call can be made there now."""

from collections.abc import Mapping

from msgspec import Struct, structs

from fallbackd.core import meter
from fallbackd.core.failures import Reason
from fallbackd.core.health.record import Health, Outage, View, is_leased, view
from fallbackd.core.health.scopes import (
    backend_scope,
    context_of,
    find_backend,
    is_missing_model,
    model_of,
    scopes_of,
    worst,
)
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, OPENCODE, Backend, Entry, Policy
from fallbackd.core.records import Meter, Verdict, VerdictWord
from fallbackd.core.routing.credentials import pick
from fallbackd.core.routing.tiers import FREE, Limits, forbidden

LONGEST_TRIAL_S = 300.0
"""A trial without a limit of its own is decided by then: the first answer of batch work."""


class Choice(Struct, frozen=True, kw_only=True):
    entry: Entry
    backend: Backend
    model: str | None = None
    credential: str | None = None
    trial_scopes: tuple[ScopeId, ...] = ()
    """Scopes whose single trial this attempt has to lease; empty: no trial."""


class Request(Struct, frozen=True, kw_only=True):
    """What is asked of a resolution besides the candidates."""

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
    """Which of its models, where the chain has several."""
    limits: Limits = FREE
    local_only: bool = False
    """This machine has no network: only candidates on this machine."""
    at_server: bool = False
    """Models of a running opencode server are asked for, which need no program of ours."""
    last_resort: bool = False
    """A single early trial may be made where no candidate is usable."""
    credential: str | None = None
    """Once more with this one, where it is configured."""
    without: frozenset[str] = frozenset()
    """Credentials that must not make the call."""
    luck: float = 0.5


def candidate_key(backend: str, model: str | None) -> str:
    return backend if model is None else f"{backend}|{model}"


class Candidate(Struct, frozen=True, kw_only=True):
    entry: Entry
    choice: Choice | None
    verdict: Verdict
    rank: int = 9
    returns_at: float | None = None
    stated: bool = False
    over_budget: bool = False


class _Facts(Struct, frozen=True, kw_only=True):
    """What is known of a candidate before anything is said about it."""

    entry: Entry
    backend: Backend
    model: str | None
    credential: str | None
    scopes: tuple[ScopeId, ...]
    state: View
    """The worst of its scopes."""
    record: Health | None
    """Of that scope."""
    budget_until_at: float | None
    """Until when our own cap is reached."""

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

    @property
    def verdict(self) -> Verdict:
        state = self.state.state
        return Verdict(
            backend=self.backend.id,
            kind=self.backend.kind,
            account=self.backend.account,
            model=self.model,
            verdict="healthy",
            state="rate_limited" if self.is_capped else state,
            tier=self.entry.tier,
            credential=self.credential,
            scope=None if self.record is None or state == "healthy" else self.record.scope,
        )


def look(
    entry: Entry,
    request: Request,
    policy: Policy,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> Candidate:
    backend = find_backend(policy, entry.backend)
    if backend is None:
        verdict = Verdict(
            backend=entry.backend,
            model=entry.model,
            verdict="not_configured",
            reason="no such backend is configured",
            tier=entry.tier,
        )
        return Candidate(entry=entry, choice=None, verdict=verdict)
    facts = _facts(entry, backend, request, health, meters, now=now)
    no = _by_request(facts, request, policy) or _by_health(facts)
    if no is not None:
        return _refused(facts, *no)
    trial_scopes: tuple[ScopeId, ...] = ()
    if facts.record is not None:  # else nothing is wrong with any of them, the commonest case
        trial_scopes = _unproven(facts.scopes, health, now=now)
    leased = [health[scope] for scope in trial_scopes if is_leased(health[scope], now=now)]
    if leased:
        decided_at = max(_decided_at(one, backend, policy) for one in leased)
        until_at = facts.until_at or decided_at
        refused = _refused(facts, "in_trial", facts.reason, until_at=until_at)
        return structs.replace(refused, returns_at=until_at)  # at the latest
    return _usable(facts, trial_scopes)


def _facts(
    entry: Entry,
    backend: Backend,
    request: Request,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> _Facts:
    model = model_of(entry, backend)
    used = meters.get(backend.id)
    credential = pick(
        backend,
        model,
        health,
        used,
        only=request.credential,
        without=request.without,
        now=now,
        luck=request.luck,
    )
    scopes = scopes_of(backend, model, credential)
    if entry.tier == "model":
        scopes = tuple(one for one in scopes if not is_missing_model(health.get(one)))
    if request.at_server:
        scopes = tuple(one for one in scopes if not _is_missing_program(health.get(one)))
    elif backend.implicit and _is_missing_program(health.get(backend_scope(OPENCODE))):
        scopes = (*scopes, backend_scope(OPENCODE))  # whose program it would be
    state, record = worst(health, scopes, now=now)
    return _Facts(
        entry=entry,
        backend=backend,
        model=model,
        credential=credential,
        scopes=scopes,
        state=state,
        record=record,
        budget_until_at=meter.over_cap_until(
            used, backend.hourly_cap, now=now, unit=backend.cap_unit
        ),
    )


def _unproven(
    scopes: tuple[ScopeId, ...], health: Mapping[ScopeId, Health], *, now: float
) -> tuple[ScopeId, ...]:
    """The scopes that a trial has to prove."""
    return tuple(
        scope
        for scope in scopes
        if (one := health.get(scope)) is not None and view(one, now=now).unproven
    )


def _by_request(
    facts: _Facts, request: Request, policy: Policy
) -> tuple[VerdictWord, str | None] | None:
    """What rules a candidate out whatever its health: settings, what was tried, the rules."""
    entry, backend, model = facts.entry, facts.backend, facts.model
    if not backend.enabled:
        return "disabled", "switched off in the configuration"
    if backend.lacks is not None:
        return "not_configured", backend.lacks
    if (no := _by_failures(facts, request)) is not None:
        return no
    if why := _too_small(context_of(policy, backend, model), request):
        return "context", why
    if (no := forbidden(entry, backend, model, request.limits)) is not None:
        return no
    if request.not_provider == (backend.provider or backend.id):
        return "same_as_failed", "the same provider rejected the form of the request"
    if request.local_only and not backend.is_local:
        return "local_network", "this machine has no network"
    return None


def _by_failures(facts: _Facts, request: Request) -> tuple[VerdictWord, str] | None:
    """What rules a candidate out because of what has failed for the same work."""
    backend = facts.backend
    if facts.credential is None and backend.credentials:
        return "tried", "each of its credentials has failed for this work"
    if candidate_key(backend.id, facts.entry.model) in request.tried:
        return "tried", facts.reason or "tried already by this delegation"
    same = request.same_as_failed
    if same and sameness(backend, facts.model, facts.credential) in same:
        return "same_as_failed", "the same provider, model and credential have failed"
    return None


def _by_health(facts: _Facts) -> tuple[VerdictWord, str | None] | None:
    """What keeps a candidate from use now: a pause, an outage, our own cap."""
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
    outage, state = facts.outage, facts.state.state
    is_out = facts.is_capped or state in ("rate_limited", "broken")
    return Candidate(
        entry=facts.entry,
        choice=None,
        verdict=structs.replace(
            facts.verdict,
            verdict=verdict,
            reason=why,
            detail=None if outage is None else outage.detail,
            until_at=until_at or facts.until_at,
        ),
        returns_at=facts.until_at if is_out else None,
        stated=not facts.is_capped and outage is not None and outage.source == "provider",
        over_budget=facts.budget_until_at is not None,
    )


def _usable(facts: _Facts, trial_scopes: tuple[ScopeId, ...]) -> Candidate:
    outage, is_recovering = facts.outage, facts.state.state == "cooldown"
    verdict: VerdictWord = "healthy"
    if is_recovering or trial_scopes:
        verdict = "cooldown" if is_recovering else "unproven"
    is_proven = verdict == "healthy"
    return Candidate(
        entry=facts.entry,
        choice=Choice(
            entry=facts.entry,
            backend=facts.backend,
            model=facts.model,
            credential=facts.credential,
            trial_scopes=trial_scopes,
        ),
        verdict=structs.replace(
            facts.verdict,
            verdict=verdict,
            reason=None if is_proven else facts.reason,
            detail=None if is_proven or outage is None else outage.detail,
            until_at=facts.until_at,
        ),
        rank=2 if facts.backend.kind == IN_SESSION_KIND else int(is_recovering),
    )


def _is_missing_program(record: Health | None) -> bool:
    return (
        record is not None
        and record.outage is not None
        and record.outage.reason is Reason.NOT_INSTALLED
    )


def sameness(backend: Backend, model: str | None, credential: str | None) -> str:
    """
    Two entries with the same provider, model and credential fail together. What is not known is
    the same as nothing else.
    """
    if backend.provider is None or model is None:
        return f"{backend.id}|{model}|{credential}"
    return f"{backend.provider}|{model}|{credential}"


def _too_small(size: int | None, request: Request) -> str | None:
    if size is None:
        return None
    if request.prompt_tokens is not None and request.prompt_tokens > size:
        return f"context too large: {request.prompt_tokens} tokens do not fit into {size}"
    if request.larger_than is not None and size <= request.larger_than:
        return f"context too large: it did not fit into {request.larger_than} tokens before"
    return None


def _decided_at(record: Health, backend: Backend, policy: Policy) -> float:
    """When the trial of a scope is decided at the latest."""
    assert record.trial is not None
    limit_s = backend.first_answer_s or policy.defaults.first_answer_s or LONGEST_TRIAL_S
    return record.trial.expires_at or record.trial.leased_at + limit_s
