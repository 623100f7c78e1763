"""The way along a chain after some of its candidates were tried, and the way back up."""

from typing import Literal

from msgspec import structs

from fallbackd.core.case import Case, CaseView
from fallbackd.core.failures import Failure
from fallbackd.core.health import HEALTHY, Health, view
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Halt, Session, Tried, Turn, Verdict
from fallbackd.core.routing.candidates import (
    AUTHOR,
    ONCE,
    UNKNOWN,
    Limits,
    candidate_key,
    find_role,
    sameness,
)
from fallbackd.core.routing.looking import THROTTLE_MEMORY_S, Request, usable
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.scopes import context_of, failed_scope, find_backend, model_of

# The way back up a chain, for roles whose policy is `successes`.
#
# A session that answers from a lower entry looks for a better one after N answers there. Better
# is strictly higher in the chain, healthy, and proven by an answer alone: a move that does not
# answer is a fall back, and a fall back soon after a move doubles N. The place in the chain is
# derived from who answered last; what is kept is how often, and since when.


MAX_NEEDED = 64
SOON_S = 600.0
"""A fall back within this time after a move up is flapping, however many answers came between."""

_NO_BETTER = frozenset({"model", "in_session"})
"""Tiers that no session moves up to."""


def role_counting(policy: Policy, name: str | None) -> Role | None:
    """The role whose answers are counted; None: another way back holds, or none."""
    role = None if name is None else find_role(policy, name)
    return role if role is not None and role.return_policy == "successes" else None


def place_of(
    policy: Policy, candidates: tuple[Entry, ...], backend: BackendId | None, model: str | None
) -> int | None:
    """Return the place of a backend with a model in a chain, 0 for the best; None: nowhere."""
    found = None if backend is None else find_backend(policy, backend)
    if found is None:
        return None
    for place, entry in enumerate(candidates):
        if entry.backend == backend and model_of(entry, found) == model:
            return place
    return next((at for at, entry in enumerate(candidates) if entry.backend == backend), None)


def answers_needed(role: Role, session: Session) -> int:
    return session.needed or role.return_n


def better(
    case: CaseView, role: Role, candidates: tuple[Entry, ...], session: Session, request: Request
) -> Entry | None:
    """
    Return the entry that the session moves up to now: dead levels are skipped. None: it stays.
    """
    here = place_of(case.policy, candidates, session.answered_by, session.answered_model)
    if not here or session.answers < answers_needed(role, session):
        return None
    above = candidates[:here]
    for entry in above if role.return_step == "best" else reversed(above):
        if entry.tier in _NO_BETTER:
            continue
        found = case.resolve((entry,), request)
        if found.choice is not None and found.verdicts[0].state == "healthy":
            return entry
    return None


def prefer(
    case: CaseView,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session | None,
    request: Request,
) -> Request:
    """The request with whom the session stays on, or moves up to."""
    if session is None or session.answered_by is None:
        return request
    entry = better(case, role, candidates, session, request)
    if entry is None:
        return structs.replace(
            request, preferred=session.answered_by, preferred_model=session.answered_model
        )
    backend = find_backend(case.policy, entry.backend)
    model = None if backend is None else model_of(entry, backend)
    return structs.replace(request, preferred=entry.backend, preferred_model=model)


def is_rise(case: CaseView, *, backend: BackendId, model: str | None) -> bool:
    """Return whether starting on a candidate is a move up because of enough answers."""
    delegation, session = case.delegation, case.session
    role = role_counting(case.policy, delegation.role)
    if role is None or delegation.named or session.answers < answers_needed(role, session):
        return False
    policy, candidates = case.policy, delegation.turn.candidates
    here = place_of(policy, candidates, session.answered_by, session.answered_model)
    there = place_of(policy, candidates, backend, model)
    return here is not None and there is not None and there < here


def counted(case: Case, attempt: Attempt) -> Session:
    """The session after an answer, with what it takes to move up from here."""
    delegation, session = case.delegation, case.session
    role = role_counting(case.policy, delegation.role)
    if role is None:
        return session
    looked_up = any(one.trigger == "recovery" for one in delegation.hops)
    return answered_by(
        case,
        role,
        delegation.turn.candidates,
        session,
        backend=attempt.backend,
        model=attempt.model,
        missed=looked_up and delegation.hops[-1].trigger != "recovery",
    )


def answered_by(
    case: Case,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session,
    *,
    backend: BackendId,
    model: str | None,
    missed: bool = False,
) -> Session:
    """
    Args:
        missed: A better candidate was tried before, and did not answer.
    """
    policy = case.policy
    before = place_of(policy, candidates, session.answered_by, session.answered_model)
    here = place_of(policy, candidates, backend, model)
    if here is None or before is None:
        return structs.replace(session, answers=1, needed=0, rose_at=None)
    needed = answers_needed(role, session)
    if missed or here > before:
        is_soon = missed or _rose_soon_before(session, needed, now=case.now)
        return structs.replace(
            session,
            answers=1,
            needed=_doubled(role, needed) if is_soon else session.needed,
            rose_at=case.now if here < before else None,
        )
    if here < before:
        return structs.replace(session, answers=1, rose_at=case.now)
    answers = session.answers + 1
    is_safe = session.rose_at is not None and answers >= needed
    return structs.replace(session, answers=answers, needed=0 if is_safe else session.needed)


def _rose_soon_before(session: Session, needed: int, *, now: float) -> bool:
    """Return whether the session came back up only lately, by answers or by the clock."""
    if session.rose_at is None:
        return False
    return session.answers < needed or now - session.rose_at < SOON_S


def missed_by(
    case: Case,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session,
    *,
    backend: BackendId,
    model: str | None,
) -> Session:
    """The session after a better candidate has failed for a caller: the next look comes later."""
    policy = case.policy
    needed = answers_needed(role, session)
    before = place_of(policy, candidates, session.answered_by, session.answered_model)
    here = place_of(policy, candidates, backend, model)
    if here is None or before is None or here >= before or session.answers < needed:
        return session
    return structs.replace(session, answers=0, needed=_doubled(role, needed))


def _doubled(role: Role, needed: int) -> int:
    return min(max(MAX_NEEDED, role.return_n), needed * 2)


def tell_return(case: Case, attempt: Attempt) -> None:
    """Say that the session is back on its first choice, once it has answered."""
    delegation, session = case.delegation, case.session
    rose = any(
        one.trigger == "recovery" and one.to_backend == attempt.backend for one in delegation.hops
    )
    if not rose or attempt.backend != session.original:
        return
    case.note(
        "session.notice",
        delegation,
        backend=attempt.backend,
        notice="recovered",
        route=(session.answered_by or session.current, attempt.backend),
        from_model=session.answered_model,
        to_model=attempt.model,
        reason="recovered",
        text=f"{attempt.backend} is used again",
    )


# --- what is asked ----------------------------------------------------------------------------


def turn_for(
    case: CaseView,
    candidates: tuple[Entry, ...],
    role: Role | None,
    session: Session | None,
    *,
    prompt_tokens: int | None = None,
    allow_metered: bool = False,
    differs_from: tuple[str, ...] | None = None,
    at_server: bool = False,
) -> Turn:
    """
    Return the turn that is asked of a chain, before anything was tried.

    Args:
        allow_metered: The caller agrees to what bills by use.
        differs_from: Model families that the caller names; None: it names none.
    """
    policy = case.policy
    first = find_backend(policy, candidates[0].backend) if candidates else None
    turn = Turn(
        candidates=candidates,
        allow_metered=allow_metered or (first is not None and first.cost == "metered"),
        differs_from=tuple(dict.fromkeys(differs_from or ())),
        max_hops=policy.defaults.max_fallback_depth,
        budget=policy.defaults.max_attempts,
        prompt_tokens=prompt_tokens,
        at_server=at_server,
        at=case.now,
    )
    if role is None:
        return turn
    return structs.replace(
        turn,
        role=role.name,
        creative=role.kind == "creative",
        on_outage=role.outage_policy,
        allow_metered=turn.allow_metered or role.allow_metered,
        differs_from=_differs_from(role, session, differs_from),
        fallback_on=None if role.fallback_on is None else tuple(sorted(role.fallback_on)),
        max_hops=(turn.max_hops if role.max_fallback_depth is None else role.max_fallback_depth),
    )


def _differs_from(
    role: Role, session: Session | None, named: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The model families that must not serve the role, with those that the caller names."""
    families = dict.fromkeys(named or ())
    for word in role.must_differ_from:
        if word != AUTHOR:
            families[word] = None
        elif named is None:
            families[(session and session.author_family) or UNKNOWN] = None
    return tuple(families)


def request_of(case: CaseView) -> Request:
    """Return what the next resolution of a delegation asks for."""
    delegation = case.delegation
    request = request_after(case.policy, case.turn)
    if delegation.named or delegation.attempts:
        return request
    return staying(case, request, delegation.role, delegation.turn.candidates, case.session)


def entry_of(candidates: tuple[Entry, ...], tried: Tried | Attempt, backend: Backend) -> Entry:
    """The entry of the chain that a call was made for."""
    return next(
        (
            one
            for one in candidates
            if one.backend == tried.backend and model_of(one, backend) == tried.model
        ),
        Entry(backend=tried.backend, model=tried.model),
    )


# --- the next candidate ----------------------------------------------------------------------


def request_after(policy: Policy, turn: Turn) -> Request:
    """Return what the next resolution asks for, after what was tried."""
    tried = set(turn.inherited_tried)
    failed: set[str] = set()
    larger_than: int | None = None
    not_provider: str | None = None
    for one in turn.tried:
        tried.add(tried_key(turn.candidates, one))
        backend = find_backend(policy, one.backend)
        if backend is None or one.reason is None:
            continue
        if not one.shrink_input:  # the same model may have more room elsewhere
            failed.add(sameness(backend, one.model, one.credential))
        if one.shrink_input and (size := context_of(policy, backend, one.model)) is not None:
            larger_than = max(larger_than or 0, size)
        if one.reason is Reason.FORMAT_ERROR:
            not_provider = backend.provider or backend.id
    return Request(
        tried=frozenset(tried),
        same_as_failed=frozenset(failed),
        prompt_tokens=turn.prompt_tokens,
        larger_than=larger_than,
        not_provider=not_provider,
        local_only=bool(turn.tried) and turn.tried[-1].reason is Reason.LOCAL_NETWORK,
        at_server=turn.at_server,
        is_batch=turn.is_batch,
        limits=limits_of(turn),
    )


def limits_of(turn: Turn) -> Limits:
    """Return the limits that the role and the request set by now."""
    reached = {one.tier for one in turn.tried if one.tier is not None}
    return Limits(
        differs_from=frozenset(turn.differs_from),
        allow_metered=turn.allow_metered,
        spent_tiers=ONCE & reached,
    )


def tried_key(candidates: tuple[Entry, ...], tried: Tried | Attempt) -> str:
    """The key of the chain entry that a call was made for."""
    for entry in candidates:
        if entry.backend == tried.backend and entry.model == tried.model:
            return candidate_key(entry.backend, entry.model)
    return candidate_key(tried.backend, None)


def staying(
    case: CaseView,
    request: Request,
    role: str | None,
    candidates: tuple[Entry, ...],
    session: Session,
) -> Request:
    """The request of a session that stays with who answered it, or moves back up."""
    counting = role_counting(case.policy, role)
    if counting is not None:
        return prefer(case, counting, candidates, session, request)
    known = None if role is None else find_role(case.policy, role)
    idle_s = case.policy.defaults.idle_s
    if known is not None and known.idle_s is not None:
        idle_s = known.idle_s
    never_returns = known is not None and known.return_policy == "new_session"
    if never_returns or case.now - session.last_used_at < idle_s:
        return structs.replace(
            request,
            preferred=session.answered_by,
            preferred_credential=session.answered_credential,
        )
    return request


# --- what ends it ----------------------------------------------------------------------------


def halted(policy: Policy, turn: Turn) -> tuple[tuple[Entry, ...], Halt | None]:
    """The candidates to which a move may still be made after the last failure, or why to none."""
    last = turn.tried[-1]
    if not may_hop(turn, last):
        reason = "a failure" if last.reason is None else last.reason.value
        why = f"{reason} is not a reason to fail over here (fallback_on)"
        return (), Halt(bound="fallback_on", why=why)
    if len(turn.tried) >= turn.budget:
        why = f"the budget of {turn.budget} attempts is used up (max_attempts)"
        return (), Halt(bound="max_attempts", why=why)
    if turn.hops < turn.max_hops:
        return turn.candidates, None
    left = _free_of_hops(policy, turn)
    if left:
        return left, None
    why = f"the maximum of {turn.max_hops} hops is reached (max_fallback_depth)"
    return (), Halt(bound="max_fallback_depth", why=why)


def may_hop(turn: Turn, failed: Tried) -> bool:
    """Return whether a failure is a reason to go to another candidate, for this role."""
    if failed.shrink_input:
        return True  # to a larger context only: the resolution sees to it
    if not failed.hop or failed.reason is None:
        return False
    return turn.fallback_on is None or failed.reason.value in turn.fallback_on


def _free_of_hops(policy: Policy, turn: Turn) -> tuple[Entry, ...]:
    """
    Candidates still allowed at the maximum of hops: what starts nothing, and the stand-in for a
    model that was just found to be missing.
    """
    last = turn.tried[-1]
    is_missing = last.reason is Reason.MODEL_NOT_FOUND
    found = []
    for entry in turn.candidates:
        backend = find_backend(policy, entry.backend)
        is_swap = is_missing and entry.tier == "model" and entry.backend == last.backend
        if is_swap or (backend is not None and backend.kind == IN_SESSION_KIND):
            found.append(entry)
    return tuple(found)


def is_poison(turn: Turn) -> bool:
    """
    Return whether two candidates failed for the same low-confidence reason: the task is the likely
    cause.
    """
    last = turn.tried[-1]
    is_unclear = last.reason is not None and last.reason.row.about == "unclear"
    if not is_unclear or last.confidence == "structured":
        return False
    return any(
        one.reason is last.reason
        and one.confidence != "structured"
        and (one.backend, one.model) != (last.backend, last.model)
        for one in turn.tried[:-1]
    )


def futile(turn: Turn) -> Literal["task", "poison"] | None:
    """Return why no other candidate would cure the last failure: the work itself is its cause."""
    reason = turn.tried[-1].reason
    if reason is not None and reason.row.about == "task":
        return "task"
    return "poison" if is_poison(turn) else None


def is_form_error_twice(turn: Turn) -> bool:
    """Return whether two providers could not read the request: a third one will not either."""
    last = turn.tried[-1]
    return last.reason is Reason.FORMAT_ERROR and any(
        one.reason is Reason.FORMAT_ERROR and one.backend != last.backend for one in turn.tried
    )


def forbidden_by(
    case: CaseView, candidates: tuple[Entry, ...], request: Request
) -> Literal["must_differ", "consent"] | None:
    """The rule of the role or of the request but for which a candidate would be usable."""
    limits = request.limits
    paid = structs.replace(limits, allow_metered=True)
    alike = structs.replace(limits, differs_from=frozenset())
    free = structs.replace(paid, differs_from=frozenset())

    def helps(other: Limits) -> bool:
        return case.resolve(candidates, structs.replace(request, limits=other)).choice is not None

    if limits.differs_from and helps(alike):
        return "must_differ"
    if not limits.allow_metered and helps(paid):
        return "consent"
    return "must_differ" if limits.differs_from and helps(free) else None


# Another credential of the same backend takes over: an attempt, not a hop.
#
# throttle, no time stated ── once more on the same ── again ── mark ─┐
# usage limit, billing, login, no secret ───────────────────── mark ──┴─▶ the next usable credential


def first_throttle(
    case: Case,
    backend: Backend,
    failure: Failure,
    *,
    model: str | None,
    credential: str | None,
    started_at: float | None,
) -> bool:
    """
    Return whether a throttle marks nothing yet: the first one without a stated time, of a
    credential that another one could take over from. It is remembered, so that the second one
    marks, whichever caller saw the first. What began before the first is no second: it is the same
    burst.
    """
    if failure.reason is not Reason.RATE_LIMIT or not failure.rotate_credential:
        return False
    if failure.wait_s is not None or credential not in backend.credentials:
        return False
    if not set(usable(backend, model, case.health, now=case.now)) - {credential}:
        return False
    scope = failed_scope(failure, backend, model, credential)
    record = case.health.get(scope) or Health(scope=scope)
    if view(record, now=case.now) != HEALTHY:
        return False
    seen_at = record.throttled_at
    if seen_at is not None and 0 <= case.now - seen_at <= THROTTLE_MEMORY_S:
        return started_at is not None and started_at < seen_at
    case.put_health(structs.replace(record, throttled_at=case.now))
    return True


def other_credential(
    case: CaseView, backend: Backend, entry: Entry, *, without: frozenset[str], tokens: int | None
) -> Resolved:
    """Return the same candidate with another credential, if there is one to go on with."""
    if len(backend.credentials) < 2:
        return Resolved(choice=None, verdicts=())
    return case.resolve((entry,), Request(prompt_tokens=tokens, without=without))


def rotated(case: CaseView, turn: Turn) -> Resolved | None:
    """
    The backend that failed last with another credential. None: there is none to go on with. One
    that is only second choice goes after a healthy candidate.
    """
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None or not last.rotate_credential:
        return None
    if last.credential is None or len(turn.tried) >= turn.budget:
        return None
    failed = frozenset(
        one.credential
        for one in turn.tried
        if one.credential is not None
        and (one.backend, one.model) == (last.backend, last.model)
        and one.rotate_credential
    )
    entry = entry_of(turn.candidates, last, backend)
    found = other_credential(case, backend, entry, without=failed, tokens=turn.prompt_tokens)
    if found.choice is None:
        return None
    if found.verdicts[0].state != "healthy" and _is_better_elsewhere(case, turn):
        return None
    return found


def with_verdict(verdicts: tuple[Verdict, ...], one: Verdict) -> tuple[Verdict, ...]:
    """The verdicts with the one on the same candidate replaced."""
    return tuple(
        one if (each.backend, each.model) == (one.backend, one.model) else each for each in verdicts
    )


def _is_better_elsewhere(case: CaseView, turn: Turn) -> bool:
    candidates, halt = halted(case.policy, turn)
    if halt is not None:
        return False
    resolved = case.resolve(candidates, request_after(case.policy, turn))
    return any(one.verdict == "chosen" and one.state == "healthy" for one in resolved.verdicts)
