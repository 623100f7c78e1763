"""Candidate, credential and lease of a caller that talks to a provider itself."""

from msgspec import Struct, structs

from fallbackd.core.case import FREE_TIERS, Case
from fallbackd.core.events import Reported
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, is_lease
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Halt, Hop, Session, Tried, Turn, Verdict
from fallbackd.core.routing.candidates import Choice, candidates_for, find_role
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved, without_choice
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.outages import search
from fallbackd.core.work.resolution import (
    entry_of,
    forbidden_by,
    futile,
    halted,
    is_form_error_twice,
    missed_by,
    request_after,
    role_counting,
    rotated,
    turn_for,
)
from fallbackd.core.work.sessions import moved

# Reports that may be about a candidate that its session had left before the call began.


def lease_of(event: Reported) -> AttemptId | None:
    """The lease under which the call was made, which its caller may give as the attempt."""
    if event.lease is None and event.attempt is not None and is_lease(event.attempt):
        return event.attempt
    return event.lease


def is_stale(case: Case, event: Reported, session: Session | None) -> bool:
    """
    Return whether a report is about a candidate that was left before the call began. One that names
    no attempt means the current candidate, except right after a move where that is not certain: a
    delegation holds the session, or the move was to another model of the same backend.
    """
    if session is None:
        return False
    if event.backend != session.current:
        return _was_left(event, session)
    if event.model is not None and session.current_model not in (None, event.model):
        return True
    if lease_of(event) is not None:
        return False  # one that is held: a late one has been turned away before
    if event.attempt is None:
        return _is_near_a_move(case, session) and _is_unclear(event, session)
    if session.attempt is not None:
        return event.attempt != session.attempt
    # Callers that make the calls themselves name them by themselves.
    return event.attempt == session.reported_attempt and _is_near_a_move(case, session)


def _was_left(event: Reported, session: Session) -> bool:
    """Return whether the session has moved away from the backend since the call began."""
    last_at = session.last_fallback_at or 0.0
    if event.started_at is not None and event.started_at > last_at:
        return False
    return any(hop.from_backend == event.backend for hop in session.hops)


def _is_near_a_move(case: Case, session: Session) -> bool:
    last_at = session.last_fallback_at
    return last_at is not None and 0 <= case.now - last_at < case.policy.defaults.dedup_window_s


def _is_unclear(event: Reported, session: Session) -> bool:
    """Return whether a report without an attempt may be about the candidate that was left."""
    last = session.hops[-1] if session.hops else None
    is_swap = last is not None and last.from_backend == last.to_backend == session.current
    return session.running is not None or (is_swap and event.model is None)


def with_attempt(session: Session, event: Reported) -> Session:
    """With the attempt that the caller names, where no attempt of ours holds the session."""
    if session.attempt is not None or event.attempt is None:
        return session
    return structs.replace(session, reported_attempt=event.attempt)


# Failover for callers that make the next call themselves: callers that report, and turns of
# sessions of opencode servers. A delegation is held by the same bounds (`work.plan`).


RULES = frozenset({"on_outage", "must_differ", "consent"})
"""Bounds that a person could lift."""
_WHY_NONE = {
    None: "no other candidate of the chain is available",
    "must_differ": "every available backend belongs to an excluded model family (must_differ_from)",
    "consent": "only candidates that bill by use are available (allow_metered)",
}


class Following(Struct, frozen=True, kw_only=True):
    """
    Attributes:
        resolved: With the choice, or with the verdicts that speak against every candidate.
        is_same: The candidate that failed, once more or with another credential.
    """

    turn: Turn
    resolved: Resolved
    halt: Halt | None = None
    is_same: bool = False

    @property
    def is_handed_back(self) -> bool:
        """The caller does the work itself: its session stays where it was."""
        choice = self.resolved.choice
        return choice is not None and choice.backend.kind == IN_SESSION_KIND

    @property
    def moves(self) -> bool:
        """True if another candidate makes the next call."""
        return self.halt is None and not self.is_same and not self.is_handed_back


def ended_by(case: Case, turn: Turn, tried: Tried) -> tuple[Turn, Halt | None]:
    """
    The record with a call that has failed, and whether that is the end: a failure of the task
    itself, or work that two candidates fail at alike. The latter withdraws the marks of the way.
    """
    backend = find_backend(case.policy, tried.backend)
    if backend is not None:
        tier = entry_of(turn.candidates, tried, backend).tier
        tried = structs.replace(tried, tier=tier)
    turn = structs.replace(turn, tried=(*turn.tried, tried))
    cause = futile(turn)
    if cause is None:
        return turn, None
    if cause == "task":
        return turn, Halt(bound="task", why=f"{tried.reason} is of the task itself")
    case.withdraw(turn.marks)
    why = f"two candidates failed with {tried.reason}: the task is the likely cause"
    return structs.replace(turn, marks=()), Halt(bound="poison", why=why)


def marked(
    case: Case,
    turn: Turn,
    failure: Failure,
    *,
    started_at: float | None,
    luck: float,
    has_waited: bool = False,
) -> Turn:
    """
    Mark what the last failure is about.

    Args:
        has_waited: It came behind the wait that its provider had stated.
    """
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None:
        return turn
    made = case.mark(
        failure,
        backend,
        model=last.model,
        credential=last.credential,
        started_at=started_at,
        luck=luck,
        repeated=has_waited and failure.wait_s is not None,
    )
    return turn if made is None else structs.replace(turn, marks=(*turn.marks, made))


def denied(case: Case, following: Following) -> None:
    """Permission that every candidate was denied is about the request: its marks are withdrawn."""
    turn, halt = following.turn, following.halt
    if halt is None or halt.bound in RULES:
        return
    if all(one.reason is Reason.PERMISSION for one in turn.tried):
        case.withdraw(turn.marks)


def fail_over(case: Case, turn: Turn, *, once_more: bool = False, may_try: bool) -> Following:
    """
    The candidate after the last one that was tried, or why there is none.

    Args:
        once_more: The same candidate is asked alike.
        may_try: A trial can be leased to the caller.
    """
    same = _same(case, turn, once_more=once_more)
    if same is not None and same.choice is not None:
        return _following(case, turn, same, same.choice, is_same=True)
    candidates, halt = halted(case.policy, turn)
    if is_form_error_twice(turn):
        why = "two providers reject the form of the request"
        halt = Halt(bound="format_error", why=why)
    request = request_after(case.policy, turn)
    if halt is not None:
        seen = case.resolve(turn.candidates, request)
        return Following(
            turn=turn, resolved=without_choice(seen, f"not used: {halt.why}"), halt=halt
        )
    found = search(case, turn, candidates, request, may_doubt=lambda _: may_try)
    resolved, out = found.resolved, found.out
    if out is not None:
        why = f"{out.text}, and the role does not go elsewhere then (on_outage)"
        halt = Halt(bound="on_outage", why=why)
        return Following(turn=turn, resolved=resolved, halt=halt)
    if resolved.choice is None:
        rule = forbidden_by(case, candidates, request)
        halt = Halt(bound=rule or "none_left", why=_WHY_NONE[rule])
        return Following(turn=turn, resolved=resolved, halt=halt)
    return _following(case, turn, resolved, resolved.choice)


def _same(case: Case, turn: Turn, *, once_more: bool) -> Resolved | None:
    if not once_more:
        return rotated(case, turn)
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None:
        return None
    entry = entry_of(turn.candidates, last, backend)
    request = Request(prompt_tokens=turn.prompt_tokens, credential=last.credential)
    return case.resolve((entry,), request)


def _following(
    case: Case, turn: Turn, resolved: Resolved, choice: Choice, *, is_same: bool = False
) -> Following:
    counts = not is_same and choice.entry.tier not in FREE_TIERS
    after = named(case, turn, choice)
    after = structs.replace(after, hops=turn.hops + int(counts))
    return Following(turn=after, resolved=resolved, is_same=is_same)


def named(case: Case, turn: Turn, choice: Choice) -> Turn:
    """The candidate that makes the next call."""
    return structs.replace(
        turn,
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        at=case.now,
    )


LEASE_S = 600.0
"""A caller that never reports loses its lease after this long."""


class Resolution(Struct, frozen=True, kw_only=True):
    """The candidate that would be used now; `backend` null: no candidate is available."""

    backend: str | None
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    trigger: str | None = None
    candidates: tuple[Verdict, ...] = ()
    retry_at: float | None = None
    position: int | None = None
    """Place of the chosen one among the candidates, 0 for the requested one."""
    lease_id: str | None = None
    lease_generation: int | None = None
    lease_expires_at: float | None = None
    lease_owner: str | None = None
    turn: Turn | None = None
    """The turn that the caller repeats when the call fails."""


class ReportAnswer(Struct, frozen=True, kw_only=True):
    failure: Failure | None = None
    next: Resolution | None = None
    candidates: tuple[Verdict, ...] = ()
    """Verdicts of the candidates after a failure."""
    retry_at: float | None = None
    ignored: bool = False
    halt: Halt | None = None
    """The reason why there is no next one."""
    turn: Turn | None = None
    """With the next one: what the caller says again when that fails too."""


def leased(
    case: Case,
    found: Resolution,
    choice: Choice,
    lease: AttemptId | None,
    *,
    owner: str | None,
) -> Resolution:
    """With the lease of the one trial, where one is needed and the caller makes the call."""
    if lease is None or not choice.trial_scopes:
        return found
    expires_at = case.now + LEASE_S
    generation = case.take_lease(choice, lease, expires_at=expires_at, owner=owner)
    return structs.replace(
        found,
        lease_id=lease,
        lease_generation=generation,
        lease_expires_at=expires_at,
        lease_owner=owner,
    )


def counted_credential(choice: Choice) -> str | None:
    """Its credential, where the strategy has to know how often it was chosen."""
    backend = choice.backend
    if len(backend.credentials) < 2 or backend.credential_strategy in ("fill_first", "random"):
        return None
    return choice.credential


def resolution_of(candidates: tuple[Entry, ...], resolved: Resolved) -> Resolution:
    choice = resolved.choice
    if choice is None:
        return Resolution(backend=None, candidates=resolved.verdicts, retry_at=resolved.retry_at)
    first = candidates[0]
    redirected = (first.backend, first.model) != (choice.entry.backend, choice.entry.model)
    return Resolution(
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        tier=choice.entry.tier,
        trigger="preemptive" if redirected else None,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        position=next(
            (at for at, one in enumerate(resolved.verdicts) if one.verdict == "chosen"), None
        ),
    )


# --- reports -----------------------------------------------------------------------------------


def tried_by(event: Reported, failure: Failure) -> Tried:
    """The call that a report is about."""
    return Tried(backend=event.backend, model=event.model, credential=event.credential).failed_with(
        failure
    )


def asked_by_report(
    case: Case, event: Reported, backend: Backend, session: Session | None, failure: Failure
) -> Turn:
    """
    Return the turn that a failed call was a part of, where neither the caller nor its session knows
    it: the request as far as the report repeats it.

    A failure that leaves no mark would be met again and again by a caller that says nothing else:
    the candidates before the failed one count as tried.
    """
    role = event.role or (None if session is None else session.role)
    candidates = _candidates(case, event, backend, session, role)
    found = turn_for(
        case,
        candidates,
        None if role is None else find_role(case.policy, role),
        session,
        prompt_tokens=event.prompt_tokens,
        allow_metered=event.allow_metered,
        differs_from=event.differs_from,
    )
    if session is not None or failure.marks_health:
        return found
    own = Tried(backend=backend.id, model=event.model)
    place = _place(candidates, own, backend) or 0
    before = tuple(Tried(backend=one.backend, model=one.model) for one in candidates[:place])
    return structs.replace(found, tried=before)


def _candidates(
    case: Case, event: Reported, backend: Backend, session: Session | None, role: str | None
) -> tuple[Entry, ...]:
    is_named = event.role is not None or bool(event.chain)
    first = None if role or event.chain else backend.id
    found = candidates_for(
        case.policy, backend=first, role=role, chain=event.chain, session=session
    )
    if is_named and all(one.backend != backend.id for one in found):
        # It was asked for by its name, before those of the chain.
        return candidates_for(
            case.policy, backend=backend.id, role=role, chain=event.chain, session=session
        )
    return found


def _place(candidates: tuple[Entry, ...], tried: Tried, backend: Backend) -> int | None:
    entry = entry_of(candidates, tried, backend)
    return candidates.index(entry) if entry in candidates else None


def answer_of(
    case: Case,
    event: Reported,
    turn: Turn,
    failure: Failure,
    following: Following | None,
    halt: Halt | None,
) -> ReportAnswer:
    """The answer to a failure: the next candidate with its lease, or why there is none."""
    if following is None:
        return ReportAnswer(failure=failure, halt=halt)
    resolved, choice = following.resolved, following.resolved.choice
    if choice is None:
        return ReportAnswer(
            failure=failure,
            candidates=resolved.verdicts,
            retry_at=resolved.retry_at,
            halt=following.halt,
        )
    if following.is_same:
        found = resolution_of((choice.entry,), resolved)
        last = turn.tried[-1]
        place = _place(turn.candidates, last, choice.backend)
        found = structs.replace(found, position=place)
    else:
        found = resolution_of(turn.candidates, resolved)
    found = leased(case, found, choice, event.next_lease, owner=event.owner)
    if event.next_lease is not None:
        case.meters.count_start(choice.backend.id, is_first=False)
    case.meters.count_credential(choice.backend.id, counted_credential(choice))
    return ReportAnswer(
        failure=failure,
        next=found,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        turn=None if following.is_handed_back else following.turn,
    )


def missed(case: Case, turn: Turn, session: Session, event: Reported) -> Session:
    """The session after a better candidate was tried in vain, where its role counts answers."""
    role = role_counting(case.policy, turn.role)
    if role is None:
        return session
    return missed_by(case, role, turn.candidates, session, backend=event.backend, model=event.model)


def moved_on(
    case: Case, session: Session, left: Backend, following: Following, failure: Failure
) -> Session:
    """The session on its next candidate. Announced once for each pair of original and current."""
    choice = following.resolved.choice
    assert choice is not None
    hop = Hop(
        at=case.now,
        from_backend=left.id,
        to_backend=choice.backend.id,
        trigger="reactive",
        reason=failure.reason.value,
        evidence=failure.evidence,
    )
    wanted = session.original
    session, is_news = moved(
        case, session, hop, wanted=wanted, model=choice.entry.model, forgets=True
    )
    if is_news:
        case.note(
            "session.notice",
            session=session.session,
            backend=hop.to_backend,
            notice="fallback",
            route=(wanted, hop.to_backend),
            from_model=None,
            to_model=None,
            reason=hop.reason,
            text=f"switched from {left.id} to {hop.to_backend} ({hop.reason})",
        )
    return session
