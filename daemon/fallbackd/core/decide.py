"""
The one place where state changes: an event and a snapshot in, changes and effects out.

`decide` is pure. The store runs it inside a transaction and may run it again; the engine
performs the effects after the changes are durable.
"""

from typing import assert_never

from fallbackd.core.callers import report
from fallbackd.core.case import Case
from fallbackd.core.changes import Decision
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    CancelRequested,
    ClockStepped,
    ConfigReloaded,
    ConversationSeen,
    CredentialSeen,
    DelegateRequested,
    Event,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    KeepRequested,
    QuestionAnswered,
    ReadinessSeen,
    Reported,
    ResolveRequested,
    Resumed,
    SessionCompacted,
    SessionEnded,
    SharedSeen,
    Ticked,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.opencode import rescues, turns
from fallbackd.core.opencode.projects import in_project, project_of
from fallbackd.core.policy import Policy
from fallbackd.core.records import Snapshot
from fallbackd.core.turn_events import (
    RedirectAsked,
    RescueAdvanced,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)
from fallbackd.core.upkeep import clock, credentials, marks, shared
from fallbackd.core.work import admit, answer, ended, resume, running


def decide(snapshot: Snapshot, event: Event, policy: Policy, *, now: float) -> Decision:
    """
    Decide what one event changes and orders.

    Args:
        snapshot: Records of one instant. The event determines which ones it holds beside health,
            meters and unfinished work (`engine.keys`).
        now: Unix seconds. The only time there is.

    Returns:
        Changes (all or none are kept), effects (performed after that), and for some events an
        immediate answer or a rejection.
    """
    policy = in_project(policy, project_of(snapshot, event))
    case = Case(snapshot, policy, now=now, luck=getattr(event, "luck", 0.5))
    match event:
        case (
            DelegateRequested()
            | CancelRequested()
            | KeepRequested()
            | QuestionAnswered()
            | Woke()
            | Resumed()
            | WorkspaceMoved()
        ):
            return _work(case, event)
        case (
            AttemptStarted()
            | ConversationSeen()
            | AttemptAnswered()
            | AttemptRetrying()
            | AttemptGaveUp()
            | AttemptEnded()
        ):
            return _attempt(case, event)
        case ResolveRequested() | Reported() | SessionEnded() | SessionCompacted():
            return _caller(case, event)
        case (
            TurnBegan()
            | TurnAnswered()
            | TurnEnded()
            | TurnUsed()
            | TurnFailed()
            | RedirectAsked()
            | RescueAdvanced()
        ):
            return _opencode(case, event)
        case (
            HealthMarked()
            | HealthCleared()
            | HealthPaused()
            | HealthResumed()
            | ReadinessSeen()
            | CredentialSeen()
            | SharedSeen()
            | ConfigReloaded()
            | Ticked()
            | ClockStepped()
        ):
            return _upkeep(case, event)
        case _:
            assert_never(event)


def _work(
    case: Case,
    event: DelegateRequested
    | CancelRequested
    | KeepRequested
    | QuestionAnswered
    | Woke
    | Resumed
    | WorkspaceMoved,
) -> Decision:
    match event:
        case DelegateRequested():
            return admit.delegate_requested(case, event)
        case CancelRequested():
            return admit.cancel_requested(case, event)
        case KeepRequested():
            if (found := case.snapshot.delegation) is not None and not found.is_ended:
                case.update(orphan_s=None)
        case QuestionAnswered():
            return answer.question_answered(case, event)
        case Woke():
            running.woke(case, event)
        case Resumed():
            resume.resumed(case, event)
        case WorkspaceMoved():
            if (found := case.snapshot.delegation) is not None and not found.is_ended:
                case.update(cwd_ids=event.cwd_ids)
        case _:
            assert_never(event)
    return case.finish()


def _attempt(
    case: Case,
    event: AttemptStarted
    | ConversationSeen
    | AttemptAnswered
    | AttemptRetrying
    | AttemptGaveUp
    | AttemptEnded,
) -> Decision:
    match event:
        case AttemptStarted():
            running.attempt_started(case, event)
        case ConversationSeen():
            running.conversation_seen(case, event)
        case AttemptAnswered():
            running.attempt_answered(case, event)
        case AttemptRetrying():
            running.attempt_retrying(case, event)
        case AttemptGaveUp():
            running.attempt_gave_up(case, event)
        case AttemptEnded():
            ended.attempt_ended(case, event)
        case _:
            assert_never(event)
    return case.finish()


def _caller(
    case: Case, event: ResolveRequested | Reported | SessionEnded | SessionCompacted
) -> Decision:
    match event:
        case ResolveRequested():
            return report.resolve_requested(case, event)
        case Reported():
            return report.reported(case, event)
        case SessionEnded():
            if case.snapshot.session is not None:
                case.drop_session_id(case.snapshot.session.session)
        case SessionCompacted():
            report.session_compacted(case, event)
        case _:
            assert_never(event)
    return case.finish()


def _opencode(
    case: Case,
    event: TurnBegan
    | TurnAnswered
    | TurnEnded
    | TurnUsed
    | TurnFailed
    | RedirectAsked
    | RescueAdvanced,
) -> Decision:
    match event:
        case TurnBegan():
            turns.turn_began(case, event)
        case TurnAnswered():
            turns.turn_answered(case, event)
        case TurnEnded():
            turns.turn_ended(case)
        case TurnUsed():
            turns.turn_used(case, event)
        case TurnFailed():
            return case.finish(answer=rescues.turn_failed(case, event))
        case RedirectAsked():
            return case.finish(answer=turns.redirect_asked(case, event))
        case RescueAdvanced():
            return case.finish(answer=rescues.rescue_advanced(case, event))
        case _:
            assert_never(event)
    return case.finish()


def _upkeep(
    case: Case,
    event: HealthMarked
    | HealthCleared
    | HealthPaused
    | HealthResumed
    | ReadinessSeen
    | CredentialSeen
    | SharedSeen
    | ConfigReloaded
    | Ticked
    | ClockStepped,
) -> Decision:
    match event:
        case HealthMarked():
            return case.finish(answer=marks.health_marked(case, event))
        case HealthCleared():
            return case.finish(answer=marks.health_cleared(case, event))
        case HealthPaused():
            return case.finish(answer=marks.health_paused(case, event))
        case HealthResumed():
            return case.finish(answer=marks.health_resumed(case, event))
        case ReadinessSeen():
            marks.readiness_seen(case, event)
        case CredentialSeen():
            credentials.credential_seen(case, event)
        case SharedSeen():
            shared.shared_seen(case, event)
        case ConfigReloaded():
            marks.config_reloaded(case, event)
        case Ticked():
            marks.ticked(case, event)
        case ClockStepped():
            clock.clock_stepped(case, event)
        case _:
            assert_never(event)
    return case.finish()
