"""
Which candidate is used now, and a verdict with a reason for each of them.

Healthy before cooldown; within a state the order of the chain. A candidate that came back by
the clock alone (unproven, or in cooldown) is used by one leased trial at a time.
"""

from collections.abc import Mapping

from msgspec import Struct, structs

from fallbackd.core import meter
from fallbackd.core.failures import Reason
from fallbackd.core.health.machine import Health, Outage, View, early_trial_at, is_leased, view
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
from fallbackd.core.policy import IN_SESSION_KIND, OPENCODE, Backend, Entry, Policy, Role
from fallbackd.core.records import Meter, Session, Verdict, VerdictWord
from fallbackd.core.routing.credentials import pick
from fallbackd.core.routing.tiers import FREE, Limits, forbidden, labelled, wanted

LONGEST_TRIAL_S = 300.0
"""A trial without a limit of its own is decided by then: the first answer of batch work."""


NEVER_BY_TIME: frozenset[VerdictWord] = frozenset({"context", "must_differ", "consent"})
"""Verdicts that do not change when an outage ends."""


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
    """A single early trial may be made where nobody is usable."""
    credential: str | None = None
    """Once more with this one, where it is configured."""
    without: frozenset[str] = frozenset()
    """Credentials that must not make the call."""
    luck: float = 0.5


class Resolved(Struct, frozen=True, kw_only=True):
    choice: Choice | None
    verdicts: tuple[Verdict, ...]
    retry_at: float | None = None
    """The earliest return of anybody, where a time is known."""
    stated_at: float | None = None
    """The earliest return that a provider stated, of a candidate that was not tried."""
    in_trial: bool = False
    """Somebody untried is under trial: its verdict is worth waiting for."""


def without_choice(resolved: Resolved, why: str) -> Resolved:
    """The same with no choice: whoever was chosen is not used, and `why` says which bound it is."""
    verdicts = tuple(
        structs.replace(
            one, verdict="healthy" if one.state == "healthy" else "cooldown", reason=why
        )
        if one.verdict == "chosen"
        else one
        for one in resolved.verdicts
    )
    return structs.replace(resolved, choice=None, verdicts=verdicts)


def candidate_key(backend: str, model: str | None) -> str:
    return backend if model is None else f"{backend}|{model}"


class _Seen(Struct, frozen=True, kw_only=True):
    entry: Entry
    choice: Choice | None
    verdict: Verdict
    rank: int = 9
    returns_at: float | None = None
    stated: bool = False
    over_budget: bool = False


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
        _look(entry, request, policy, health, meters, now=now)
        for entry in wanted(dict.fromkeys(candidates), policy, health, now=now)
    ]
    usable = [index for index, one in enumerate(seen) if one.choice is not None]
    best = min(usable, key=lambda index: _order(seen[index], request), default=None)
    if best is None and request.last_resort:
        best = _last_resort(seen, policy, health, now=now)
        if best is not None:
            seen[best] = _early(seen[best], policy, health, now=now)
    verdicts = [one.verdict for one in seen]
    choice = None
    if best is not None:
        choice = seen[best].choice
        verdicts[best] = structs.replace(verdicts[best], verdict="chosen")
        if choice is not None and choice.backend.id == request.preferred:
            verdicts[:best] = [_passed_over(one, choice.backend.id) for one in verdicts[:best]]
    returns = [
        one.returns_at
        for one in seen
        if one.returns_at is not None and one.verdict.verdict not in NEVER_BY_TIME
    ]
    stated = [
        one.returns_at
        for one in seen
        if one.returns_at is not None and one.stated and one.verdict.verdict == "rate_limited"
    ]
    return Resolved(
        choice=choice,
        verdicts=tuple(verdicts),
        retry_at=min(returns, default=None),
        stated_at=min(stated, default=None),
        in_trial=any(one.verdict.verdict == "in_trial" for one in seen),
    )


def _passed_over(one: Verdict, preferred: BackendId) -> Verdict:
    if one.verdict not in ("healthy", "unproven"):
        return one
    why = f"the session stays with {preferred}, which answered it last"
    return structs.replace(one, verdict="affinity", reason=why)


def _order(one: _Seen, request: Request) -> tuple[int, int]:
    choice = one.choice
    is_preferred = (
        choice is not None
        and choice.backend.id == request.preferred
        and request.preferred_model in (None, choice.model)
    )
    return (one.rank, 0 if is_preferred else 1)


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


def _look(
    entry: Entry,
    request: Request,
    policy: Policy,
    health: Mapping[ScopeId, Health],
    meters: Mapping[BackendId, Meter],
    *,
    now: float,
) -> _Seen:
    backend = find_backend(policy, entry.backend)
    if backend is None:
        verdict = Verdict(
            backend=entry.backend,
            model=entry.model,
            verdict="not_configured",
            reason="no such backend is configured",
            tier=entry.tier,
        )
        return _Seen(entry=entry, choice=None, verdict=verdict)
    facts = _facts(entry, backend, request, health, meters, now=now)
    no = _by_request(facts, request, policy) or _by_health(facts)
    if no is not None:
        return _refused(facts, *no)
    trial_scopes: tuple[ScopeId, ...] = ()
    if facts.record is not None:  # else nothing is wrong with any of them, the commonest case
        trial_scopes = tuple(
            scope
            for scope in facts.scopes
            if (one := health.get(scope)) is not None and view(one, now=now).unproven
        )
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


def _by_request(
    facts: _Facts, request: Request, policy: Policy
) -> tuple[VerdictWord, str | None] | None:
    """What rules a candidate out whatever its health: settings, what was tried, the rules."""
    entry, backend, model = facts.entry, facts.backend, facts.model
    if not backend.enabled:
        return "disabled", "switched off in the configuration"
    if backend.lacks is not None:
        return "not_configured", backend.lacks
    if facts.credential is None and backend.credentials:
        return "tried", "each of its credentials has failed for this work"
    if candidate_key(backend.id, entry.model) in request.tried:
        return "tried", facts.reason or "tried already by this delegation"
    same = request.same_as_failed
    if same and sameness(backend, model, facts.credential) in same:
        return "same_as_failed", "the same provider, model and credential have failed"
    if why := _too_small(context_of(policy, backend, model), request):
        return "context", why
    if (no := forbidden(entry, backend, model, request.limits)) is not None:
        return no
    if request.not_provider == (backend.provider or backend.id):
        return "same_as_failed", "the same provider rejected the form of the request"
    if request.local_only and not backend.is_local:
        return "local_network", "this machine has no network"
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
) -> _Seen:
    outage, state = facts.outage, facts.state.state
    is_out = facts.is_capped or state in ("rate_limited", "broken")
    return _Seen(
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


def _usable(facts: _Facts, trial_scopes: tuple[ScopeId, ...]) -> _Seen:
    outage, is_recovering = facts.outage, facts.state.state == "cooldown"
    verdict: VerdictWord = "healthy"
    if is_recovering or trial_scopes:
        verdict = "cooldown" if is_recovering else "unproven"
    is_proven = verdict == "healthy"
    return _Seen(
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


def _outages(
    one: _Seen, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
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
    seen: list[_Seen], policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> int | None:
    """The first candidate on which an early trial is due. Only where nobody is usable."""
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


def _early(one: _Seen, policy: Policy, health: Mapping[ScopeId, Health], *, now: float) -> _Seen:
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


def candidates_for(
    policy: Policy,
    *,
    backend: BackendId | None,
    role: str | None,
    chain: tuple[Entry, ...] | None,
    model: str | None = None,
    session: Session | None = None,
) -> tuple[Entry, ...]:
    """
    The requested backend, then the first chain of explicit, role, requested backend, `*` that
    exists and is not empty. Chains are not joined. The built-in `*` holds all agents: what a
    caller has named does not fall back to it.
    """
    found = chain or ()
    known = None if role is None else find_role(policy, role)
    if not found and known is not None and known.enabled:
        found = known.chain
    fallback_model = None if known is None else known.fallback_model
    requested = backend
    if requested is None and not found and session is not None:
        requested = session.original
    if not found and requested is not None:
        found = policy.chains.get(requested, ())
    is_open = backend is None and known is None
    if not found and (is_open or not policy.any_is_built_in):
        found = policy.chains.get("*", ())
    if requested is None:
        first = found[:1]
        if model is not None and first:
            first = (structs.replace(first[0], model=model),)
        return labelled((*first, *found[1:]), policy, fallback_model=fallback_model)
    head = Entry(backend=requested, model=model)
    rest = tuple(e for e in found if not (e.backend == requested and e.model in (model, None)))
    return labelled((head, *rest), policy, fallback_model=fallback_model)


def find_role(policy: Policy, name: str) -> Role | None:
    """Exact, then a unique normalised match: lower case, letters and digits, without `agent`."""
    if name in policy.roles:
        return policy.roles[name]
    wanted = _normalised(name)
    found = [role for key, role in policy.roles.items() if _normalised(key) == wanted]
    return found[0] if len(found) == 1 else None


def _normalised(name: str) -> str:
    plain = "".join(ch for ch in name.lower() if ch.isalnum())
    return plain.removesuffix("agent") or plain
