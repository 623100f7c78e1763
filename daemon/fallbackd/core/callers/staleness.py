"""Whether a report is about a candidate that its session had left before the call began."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import Reported
from fallbackd.core.ids import AttemptId, is_lease
from fallbackd.core.records import Session


def lease_of(event: Reported) -> AttemptId | None:
    """The lease under which the call was made, which its caller may give as the attempt."""
    if event.lease is None and event.attempt is not None and is_lease(event.attempt):
        return event.attempt
    return event.lease


def is_stale(case: Case, event: Reported, session: Session | None) -> bool:
    """
    Whether a report is about a candidate that was left before the call began. One that names no
    attempt means the current candidate, except right after a move where that is not certain: a
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
    """Whether the session has moved away from the backend since the call began."""
    last_at = session.last_fallback_at or 0.0
    if event.started_at is not None and event.started_at > last_at:
        return False
    return any(hop.from_backend == event.backend for hop in session.hops)


def _is_near_a_move(case: Case, session: Session) -> bool:
    last_at = session.last_fallback_at
    return last_at is not None and 0 <= case.now - last_at < case.policy.defaults.dedup_window_s


def _is_unclear(event: Reported, session: Session) -> bool:
    """Whether a report without an attempt may be about the candidate that was left."""
    last = session.hops[-1] if session.hops else None
    is_swap = last is not None and last.from_backend == last.to_backend == session.current
    return session.running is not None or (is_swap and event.model is None)


def with_attempt(session: Session, event: Reported) -> Session:
    """With the attempt that the caller names, where no attempt of ours holds the session."""
    if session.attempt is not None or event.attempt is None:
        return session
    return structs.replace(session, reported_attempt=event.attempt)
