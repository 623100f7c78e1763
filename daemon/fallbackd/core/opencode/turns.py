"""Turns of opencode sessions that go well, and messages that are about to be sent."""

from msgspec import Struct, structs

from fallbackd.core.callers.failing_over import named
from fallbackd.core.case import Case
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId
from fallbackd.core.opencode.session import (
    begun,
    candidates_of,
    chosen_by_user,
    lease,
    model_at_server,
    moved_on,
    new_session,
    placed,
    returned,
    role_of,
    told_outage,
    with_usage,
    without_running,
)
from fallbackd.core.policy import Policy, Role
from fallbackd.core.records import Hop, Session, Verdict
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.turn_events import RedirectAsked, TurnAnswered, TurnBegan, TurnEnded, TurnUsed
from fallbackd.core.upkeep.marks import tell_recovery
from fallbackd.core.work.resolution import request_after, turn_for
from fallbackd.core.work.search import search


class Redirect(Struct, frozen=True, kw_only=True):
    """Which model a message is to be sent to. `model` null: to the one that it names."""

    model: str | None = None
    reason: str | None = None
    retry_at: float | None = None
    """When the first model is available again, if none is now."""
    verdicts: tuple[Verdict, ...] = ()


def turn_began(case: Case, event: TurnBegan) -> None:
    session = case.snapshot.session or new_session(
        case, event.session, event.backend, server=event.server, project=event.project
    )
    session = placed(session, server=event.server, project=event.project, role=event.role)
    rescue = session.rescue
    is_ours = rescue is not None and event.message in (rescue.message, rescue.new_message)
    is_known = session.message is not None and session.message.id == event.message
    if not (is_ours or is_known or event.message in session.superseded):
        session = chosen_by_user(case, session, event.backend)
        session = begun(case, session, event.message, event.backend)
    case.keep_session(session)


def turn_answered(case: Case, event: TurnAnswered) -> None:
    """The first sign of the provider in a turn: it proves the model and ends its trial."""
    session = case.snapshot.session
    message = None if session is None else session.message
    if session is None or message is None or message.id != event.message or message.answered:
        return
    backend = find_backend(case.policy, event.backend)
    if backend is not None:
        case.succeed(backend, model=backend.model, credential=None, started_at=message.began_at)
    case.keep_session(
        structs.replace(
            session,
            answered_by=event.backend,
            message=structs.replace(message, answered=True, lease=None),
            last_used_at=case.now,
        )
    )


def turn_ended(case: Case, event: TurnEnded) -> None:
    """The session is idle: the time to say that its original is back."""
    session = case.snapshot.session
    if session is None:
        return
    after = without_running(session)
    if after.current != after.original:
        after = tell_recovery(case, after)
    if after is not session:
        case.keep_session(after)


def turn_used(case: Case, event: TurnUsed) -> None:
    session = case.snapshot.session
    if session is None or event.message <= session.counted:
        return
    session = with_usage(case, session, event.backend, event.usage, at=event.at)
    case.keep_session(structs.replace(session, counted=event.message, last_used_at=case.now))


def redirect_asked(case: Case, event: RedirectAsked) -> Redirect:
    """
    Where a message is to be sent: to another model only while its own is rate-limited, broken or
    paused. A model that recovers is the user's to use, whether it is under trial or not. A message
    that waits behind another turn changes nothing of the session before its own turn begins.
    """
    session = case.snapshot.session or new_session(
        case, event.session, event.backend, server=event.server, project=event.project
    )
    session = placed(session, server=event.server, project=event.project, role=event.role)
    if _is_decided(session, event.backend):
        return Redirect()
    if session.pending_lease is not None:
        case.give_back(session.pending_lease)
        session = structs.replace(session, pending_lease=None)
    if not _waits(session) and event.backend not in (session.original, session.current):
        session = chosen_by_user(case, session, event.backend)
    role = role_of(case.policy, event.role)
    if not _is_redirected(case.policy, role):
        case.keep_session(session)
        return Redirect()
    candidates = candidates_of(case, event.backend, event.role, session)
    turn = turn_for(case, candidates, role, session, at_server=True)
    request = request_after(case.policy, turn)
    resolved = case.resolve(candidates[:1], request)
    stays = resolved.choice is not None or resolved.in_trial
    if not stays:
        resolved = search(case, turn, candidates, request).resolved
    choice = resolved.choice
    if choice is None and not stays:
        if len(candidates) > 1:
            session = _told_of(case, session, event.backend, resolved)
        case.keep_session(session)
        return Redirect(retry_at=resolved.retry_at, verdicts=resolved.verdicts)
    if choice is not None:
        session = structs.replace(
            session,
            pending_lease=lease(case, choice, event.lease),
            turn=named(case, turn, choice),
        )
    session = structs.replace(session, last_used_at=case.now)
    return _redirected(case, event, session, resolved)


def _waits(session: Session) -> bool:
    """Whether a message that is sent now waits for the end of another turn."""
    message = session.message
    return session.rescue is not None or (message is not None and message.running)


def _is_decided(session: Session, backend: BackendId) -> bool:
    """Whether the message goes there by a decision of before, whose trial is leased."""
    rescue, message = session.rescue, session.message
    if rescue is not None and backend == rescue.to:
        return True
    return message is not None and message.lease is not None and backend == message.backend


def _is_redirected(policy: Policy, role: Role | None) -> bool:
    return policy.rescues and (role is None or role.enabled)


def _told_of(case: Case, session: Session, backend: BackendId, resolved: Resolved) -> Session:
    reason = next((one.reason for one in resolved.verdicts if one.reason), "out of use")
    return told_outage(case, session, backend, reason, resolved.retry_at)


def _redirected(case: Case, event: RedirectAsked, session: Session, resolved: Resolved) -> Redirect:
    """The answer, and the session where the choice is: on its own model, or moved."""
    choice, verdicts = resolved.choice, resolved.verdicts
    if choice is None or choice.backend.id == event.backend:
        if not _waits(session) and event.backend == session.original != session.current:
            session = returned(case, session)
        case.keep_session(session)
        return Redirect(verdicts=verdicts)
    reason = verdicts[0].reason or verdicts[0].state
    if session.current != choice.backend.id:
        hop = Hop(
            at=case.now,
            from_backend=event.backend,
            to_backend=choice.backend.id,
            trigger="preemptive",
            reason=reason,
        )
        session = moved_on(case, session, hop)
    case.keep_session(session)
    return Redirect(
        model=model_at_server(choice.entry, choice.backend), reason=reason, verdicts=verdicts
    )
