"""Callers that make their calls themselves: which backend they would use, and what happened."""

from msgspec import structs

from fallbackd.core.callers.lease import (
    LEASE_S,
    ReportAnswer,
    answer_of,
    asked_by_report,
    counted_credential,
    denied,
    ended_by,
    fail_over,
    is_stale,
    lease_of,
    leased,
    marked,
    missed,
    moved_on,
    named,
    resolution_of,
    tried_by,
    with_attempt,
)
from fallbackd.core.case import Case
from fallbackd.core.decision import Decision, PutSession, Rejection
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.failures import Failure
from fallbackd.core.history import Share
from fallbackd.core.ids import SessionId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry
from fallbackd.core.records import Session, Turn
from fallbackd.core.routing.candidates import (
    UNKNOWN,
    Choice,
    candidates_for,
    family_of,
    find_role,
    own_chain,
)
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.offline import own_trouble
from fallbackd.core.work.outages import search
from fallbackd.core.work.resolution import (
    answered_by,
    first_throttle,
    request_after,
    role_counting,
    staying,
    turn_for,
)
from fallbackd.core.work.sessions import charged, entered, on_candidate


def resolve_requested(case: Case, event: ResolveRequested) -> Decision:
    """
    Without a lease it is a look, which leaves a known session as it is unless it names the original
    to return to. With one the caller makes the call.
    """
    if event.backend is not None and find_backend(case.policy, event.backend) is None:
        known = ", ".join(case.policy.backends)
        return _unknown(f"no backend {event.backend!r}; known are {known}", backend=event.backend)
    session = case.snapshot.session
    candidates = candidates_for(
        case.policy,
        backend=event.backend,
        role=event.role,
        chain=event.chain,
        model=event.model,
        session=session,
    )
    turn = _asked(case, event, candidates, session)
    request = structs.replace(request_after(case.policy, turn), credential=event.credential)
    if session is not None and event.backend is None and not turn.tried:
        request = staying(case, request, event.role, candidates, session)
    is_taken = event.lease is not None
    resolved = search(case, turn, candidates, request, may_doubt=lambda _: is_taken).resolved
    choice = resolved.choice
    found = resolution_of(candidates, resolved)
    if choice is not None:
        found = leased(case, found, choice, event.lease, owner=event.owner)
        turn = named(case, turn, choice)
        found = structs.replace(found, turn=turn)
        if is_taken:
            case.meters.count_start(choice.backend.id, is_first=True)
        case.meters.count_credential(choice.backend.id, counted_credential(choice))
    if event.session is not None and _is_entered(event, session, resolved):
        _enter(case, event, event.session, candidates, turn, choice)
    return case.finish(answer=found)


def _unknown(message: str, **about: str | None) -> Decision:
    return Decision(rejection=Rejection(kind="unknown_backend", message=message, data=about))


def _asked(
    case: Case, event: ResolveRequested, candidates: tuple[Entry, ...], session: Session | None
) -> Turn:
    """The turn that the session is in the middle of, where the request continues it; else a new."""
    turn = None if event.keeps_turn else _open_turn(case, session, at=case.now)
    if turn is not None and event.backend is None and turn.candidates == candidates:
        return turn
    differs_from = event.differs_from
    if differs_from is None and event.session is None and event.lease is None:
        differs_from = ()  # only a look, in no conversation: there is no author to differ from
    turn = turn_for(
        case,
        candidates,
        None if event.role is None else find_role(case.policy, event.role),
        session,
        prompt_tokens=event.prompt_tokens,
        allow_metered=event.allow_metered,
        differs_from=differs_from,
    )
    return structs.replace(turn, is_own=event.keeps_turn)


def _enter(
    case: Case,
    event: ResolveRequested,
    name: SessionId,
    candidates: tuple[Entry, ...],
    turn: Turn,
    choice: Choice | None,
) -> None:
    """The session of the request, on the choice where the caller makes the call."""
    known, is_taken = case.snapshot.session, event.lease is not None
    session = entered(
        case,
        name,
        known,
        role=event.role,
        named=event.backend,
        first=candidates[0].backend,
        chain=own_chain(case.policy, backend=event.backend, role=event.role, chain=event.chain),
        running=case.holder_of(name),
        above=() if is_taken else None,
    )
    used_at = case.now if is_taken or known is None else known.last_used_at
    session = structs.replace(session, last_used_at=used_at, turn=None)
    if is_taken and choice is not None and choice.backend.kind != IN_SESSION_KIND:
        session = structs.replace(on_candidate(session, choice), turn=_kept(turn))
    case.keep_session(session)


def _kept(turn: Turn | None) -> Turn | None:
    """Return the part of a turn that the session keeps."""
    return None if turn is None or turn.is_own else turn


def _is_entered(event: ResolveRequested, session: Session | None, resolved: Resolved) -> bool:
    """
    Return whether the request changes its session: by a call that fits somewhere, or by a return.
    """
    if all(one.verdict == "context" for one in resolved.verdicts):
        return False
    choice = resolved.choice
    return event.lease is not None or (choice is not None and _is_return(event, session, choice))


def _is_return(event: ResolveRequested, session: Session | None, choice: Choice) -> bool:
    """Return whether a look also opens a session, or names the original to return to."""
    if session is None:
        return True
    named = event.backend == session.original == choice.backend.id
    return named and session.current != session.original


def _open_turn(case: Case, session: Session | None, *, at: float) -> Turn | None:
    """
    Return the turn that a session is in the middle of. A caller that was silent for long has given
    up.
    """
    found = None if session is None else session.turn
    return found if found is not None and at - found.at <= LEASE_S else None


def reported(case: Case, event: Reported) -> Decision:
    decision = _told(case, event)
    if not event.is_claim:
        return decision
    own = [
        one
        for one in decision.changes
        if isinstance(one, PutSession) and one.session.session == event.session
    ]
    return structs.replace(decision, changes=tuple(own), effects=())


def _told(case: Case, event: Reported) -> Decision:
    backend = find_backend(case.policy, event.backend)
    if backend is None:
        return _unknown(f"no backend {event.backend!r} is known", backend=event.backend)
    if backend.credentials and event.credential not in (None, *backend.credentials):
        return _unknown(
            f"{backend.id} has no credential {event.credential!r}; "
            f"it has {', '.join(backend.credentials)}",
            backend=backend.id,
            credential=event.credential,
        )
    for _ in range(event.further):
        case.meters.count_start(backend.id, is_first=False)
    session = case.snapshot.session
    is_left = is_stale(case, event, session)
    turn = _turn_of(case, event, session)
    event = _with_candidate(event, backend, session, turn)
    lease = lease_of(event)
    is_late = lease is not None and not case.give_back(lease)
    if event.outcome == "released":
        return _released(case, session)
    if event.outcome == "answered":
        if not is_late:
            _prove(case, event, backend)
        return case.finish(answer=ReportAnswer(ignored=is_late))
    if is_late:
        return _too_late(case, event, backend, session, turn)
    if event.outcome == "success":
        return _reported_success(case, event, backend, session)
    is_own = event.turn is not None and event.turn.is_own
    if session is not None and is_left and not is_own:
        if event.turn is not None and event.next_lease is not None:
            return _too_late(case, event, backend, session, turn)
        return _ignored(case, event, session)
    return _reported_failure(
        case, event, backend, session, turn, was_trial=bool(lease), is_left=is_left
    )


def _ignored(case: Case, event: Reported, session: Session) -> Decision:
    case.keep_session(structs.replace(session, ignored_reports=session.ignored_reports + 1))
    return case.finish(answer=ReportAnswer(failure=event.failure, ignored=True))


def _released(case: Case, session: Session | None) -> Decision:
    if session is not None and session.turn is not None:
        case.keep_session(structs.replace(session, turn=None))
    return case.finish(answer=ReportAnswer())


def _reported_success(
    case: Case, event: Reported, backend: Backend, session: Session | None
) -> Decision:
    _prove(case, event, backend)
    _count_end(case, event, "succeeded")
    session = charged(case, session, backend.id, event.usage)
    if session is not None:
        case.keep_session(_served(case, session, backend, event))
    return case.finish(answer=ReportAnswer())


def _count_end(case: Case, event: Reported, state: str) -> None:
    """Count the end of a call whose caller says all that becomes of it."""
    if event.turn is None or not event.turn.is_own:
        return
    reason = None if event.failure is None else event.failure.reason.value
    case.meters.count_end(event.backend, state, reason=reason, started_at=event.started_at)
    if state == "succeeded":
        _count_request(case, event, event.turn, answered=True)


def _count_request(case: Case, event: Reported, turn: Turn, *, answered: bool) -> None:
    others = any(one.reason is not None and one.backend != event.backend for one in turn.tried)
    share = Share(
        role=turn.role or "",
        requests=1,
        answered=int(answered),
        rescued=int(answered and others),
        usage=event.usage,
    )
    case.meters.count_share(event.backend, share)


def _prove(case: Case, event: Reported, backend: Backend) -> None:
    """The provider of a call answers."""
    started_at = case.now if event.started_at is None else event.started_at
    case.succeed(backend, model=event.model, credential=event.credential, started_at=started_at)


def _turn_of(case: Case, event: Reported, session: Session | None) -> Turn | None:
    """Return the turn that the call was a part of: the caller says so, or its session knows."""
    at = case.now if event.started_at is None else min(event.started_at, case.now)
    found = event.turn or _open_turn(case, session, at=at)
    if found is None or found.backend != event.backend:
        return None
    role = None if event.role is None else find_role(case.policy, event.role)
    is_same = event.role is None or found.role == (None if role is None else role.name)
    return found if is_same else None


def _with_candidate(
    event: Reported, backend: Backend, session: Session | None, turn: Turn | None
) -> Reported:
    """With the model and the credential that the caller was given, where it does not name them."""
    model, credential = event.model, event.credential
    if turn is not None:
        model, credential = model or turn.model, credential or turn.credential
    elif session is not None and session.current == backend.id:
        model = model or session.current_model
    if credential is None and len(backend.credentials) == 1:
        credential = backend.credentials[0]
    return structs.replace(event, model=model or backend.model, credential=credential)


def _too_late(
    case: Case,
    event: Reported,
    backend: Backend,
    session: Session | None,
    turn: Turn | None,
) -> Decision:
    """No health changes. After a failure the answer names the next candidate all the same."""
    session = charged(case, session, backend.id, event.usage)
    if session is not None:
        session = structs.replace(session, ignored_reports=session.ignored_reports + 1)
        case.keep_session(session)
    failure = event.failure
    if event.outcome != "failure" or failure is None:
        return case.finish(answer=ReportAnswer(failure=failure, ignored=True))
    turn = turn or asked_by_report(case, event, backend, session, failure)
    turn, halt = ended_by(case, turn, tried_by(event, failure))
    following = None if halt is not None else fail_over(case, turn, may_try=bool(event.next_lease))
    answer = answer_of(case, event, turn, failure, following, halt)
    return case.finish(answer=structs.replace(answer, ignored=True))


def _served(case: Case, session: Session, backend: Backend, event: Reported) -> Session:
    returned = backend.id == session.original
    turn = event.turn or session.turn
    known = session.role if turn is None else turn.role
    role = role_counting(case.policy, known)
    if role is not None:
        chain = candidates_for(case.policy, backend=None, role=role.name, chain=None)
        session = answered_by(case, role, chain, session, backend=backend.id, model=event.model)
    if turn is not None and turn.creative:
        family = family_of(backend, event.model) or UNKNOWN
        session = structs.replace(session, author_family=family)
    return structs.replace(
        session,
        current=backend.id,
        answered_by=backend.id,
        answered_model=event.model,
        answered_credential=event.credential if turn is not None and turn.is_own else None,
        turn=None,
        depth=0 if returned else session.depth,
        notices_sent=() if returned else session.notices_sent,
        last_used_at=case.now,
    )


def _reported_failure(
    case: Case,
    event: Reported,
    backend: Backend,
    session: Session | None,
    turn: Turn | None,
    *,
    was_trial: bool,
    is_left: bool,
) -> Decision:
    """
    Take in a reported failure; of a candidate that was left it is evidence, and moves nothing.
    """
    failure = event.failure
    _count_end(case, event, "failed")
    session = charged(case, session or _begun(case, event, backend), backend.id, event.usage)
    if failure is None:
        if session is not None:
            case.keep_session(session)
        return case.finish(answer=ReportAnswer())
    turn = turn or asked_by_report(case, event, backend, session, failure)
    failure = (
        own_trouble(case, backend, failure, has_route=event.has_route, marks=turn.marks) or failure
    )
    turn, halt = ended_by(case, turn, tried_by(event, failure))
    following = None
    if halt is None:
        once_more = not was_trial and _is_repeated(case, event, backend, turn, failure)
        if not once_more:
            before = turn.marks
            turn = marked(
                case,
                turn,
                failure,
                started_at=event.started_at,
                luck=event.luck,
                has_waited=event.has_waited,
            )
            if turn.marks is not before:
                failure = structs.replace(failure, scope=turn.marks[-1].scope)
        following = fail_over(case, turn, once_more=once_more, may_try=bool(event.next_lease))
        denied(case, following)
    answer = answer_of(case, event, turn, failure, following, halt)
    choice = None if following is None else following.resolved.choice
    if choice is not None:
        case.meters.count_hop(backend.id, choice.backend.id, failure.reason.value)
    elif event.turn is not None and event.turn.is_own:
        _count_request(case, event, turn, answered=False)
    if session is not None:
        if not is_left:
            session = missed(case, turn, with_attempt(session, event), event)
        if following is not None and following.moves and not is_left:
            session = moved_on(case, session, backend, following, failure)
        kept = _kept(answer.turn)
        case.keep_session(structs.replace(session, turn=kept, last_used_at=case.now))
    return case.finish(answer=answer)


def _begun(case: Case, event: Reported, backend: Backend) -> Session | None:
    """The session of a report that is the first to name it."""
    if event.session is None:
        return None
    return Session(
        session=event.session,
        role=event.role,
        original=backend.id,
        current=backend.id,
        running=case.holder_of(event.session),
        created_at=case.now,
        last_used_at=case.now,
    )


def _is_repeated(
    case: Case, event: Reported, backend: Backend, turn: Turn, failure: Failure
) -> bool:
    """Return whether the same candidate is asked once more before it is marked."""
    before = turn.tried[-2:-1]
    if before and before[0] == turn.tried[-1]:
        return False  # it was, however long ago
    return len(turn.tried) < turn.budget and first_throttle(
        case,
        backend,
        failure,
        model=event.model,
        credential=event.credential,
        started_at=event.started_at,
    )
