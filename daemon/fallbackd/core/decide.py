"""
The one place where state changes: an event and a snapshot in, changes and effects out.

`decide` is pure. The store runs it inside a transaction and may run it again; the engine
performs the effects after the changes are durable.
"""

from typing import Any, assert_never

from msgspec import structs

from fallbackd.core.callers import report as decide_callers
from fallbackd.core.case import Case
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
    QuestionAnswered,
    ReadinessSeen,
    RedirectAsked,
    Reported,
    RescueAdvanced,
    ResolveRequested,
    Resumed,
    SessionCompacted,
    SessionEnded,
    Ticked,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.health.machine import shift_outage
from fallbackd.core.opencode import rescues as decide_rescue
from fallbackd.core.opencode import turns as decide_turns
from fallbackd.core.opencode.projects import in_project, project_of
from fallbackd.core.policy import Policy
from fallbackd.core.questions import shifted
from fallbackd.core.records import Decision, Delegation, Snapshot
from fallbackd.core.upkeep import credentials as decide_credentials
from fallbackd.core.upkeep import marks as decide_health
from fallbackd.core.work import admit as decide_admit
from fallbackd.core.work import answer as decide_questions
from fallbackd.core.work import ended as decide_endings
from fallbackd.core.work import resume as decide_resume
from fallbackd.core.work import running as decide_attempts


def decide(snapshot: Snapshot, event: Event, policy: Policy, *, now: float) -> Decision:
    """
    Decide what one event changes and orders.

    Args:
        snapshot: Records of one instant. Which ones beside health, meters and unfinished work
            is told by the event (`engine.keys`).
        now: Unix seconds. The only time there is.

    Returns:
        Changes (all or none are kept), effects (performed after that), and for some events an
        immediate answer or a rejection.
    """
    policy = in_project(policy, project_of(snapshot, event))
    case = Case(snapshot, policy, now=now, luck=getattr(event, "luck", 0.5))
    match event:
        case DelegateRequested():
            return decide_admit.delegate_requested(case, event)
        case CancelRequested():
            return decide_admit.cancel_requested(case, event)
        case QuestionAnswered():
            return decide_questions.question_answered(case, event)
        case AttemptStarted():
            decide_attempts.attempt_started(case, event)
        case ConversationSeen():
            decide_attempts.conversation_seen(case, event)
        case AttemptAnswered():
            decide_attempts.attempt_answered(case, event)
        case AttemptRetrying():
            decide_attempts.attempt_retrying(case, event)
        case AttemptGaveUp():
            decide_attempts.attempt_gave_up(case, event)
        case AttemptEnded():
            decide_endings.attempt_ended(case, event)
        case Woke():
            decide_attempts.woke(case, event)
        case ResolveRequested():
            return decide_callers.resolve_requested(case, event)
        case Reported():
            return decide_callers.reported(case, event)
        case HealthMarked():
            return case.finish(answer=decide_health.health_marked(case, event))
        case HealthCleared():
            return case.finish(answer=decide_health.health_cleared(case, event))
        case HealthPaused():
            return case.finish(answer=decide_health.health_paused(case, event))
        case HealthResumed():
            return case.finish(answer=decide_health.health_resumed(case, event))
        case ReadinessSeen():
            decide_health.readiness_seen(case, event)
        case CredentialSeen():
            decide_credentials.credential_seen(case, event)
        case SessionEnded():
            if snapshot.session is not None:
                case.drop_session_id(snapshot.session.session)
        case SessionCompacted():
            decide_callers.session_compacted(case, event)
        case TurnBegan():
            decide_turns.turn_began(case, event)
        case TurnAnswered():
            decide_turns.turn_answered(case, event)
        case TurnEnded():
            decide_turns.turn_ended(case)
        case TurnUsed():
            decide_turns.turn_used(case, event)
        case RedirectAsked():
            return case.finish(answer=decide_turns.redirect_asked(case, event))
        case TurnFailed():
            return case.finish(answer=decide_rescue.turn_failed(case, event))
        case RescueAdvanced():
            return case.finish(answer=decide_rescue.rescue_advanced(case, event))
        case ConfigReloaded():
            decide_health.config_reloaded(case, event)
        case Ticked():
            decide_health.ticked(case, event)
        case ClockStepped():
            decide_health.clock_stepped(case, event.by_s)
            case.keep_facts(event.facts)
            for delegation in snapshot.active.values():
                case.update_other(delegation.delegation, **_shifted(delegation, event.by_s))
        case Resumed():
            decide_resume.resumed(case, event)
        case WorkspaceMoved():
            if (found := snapshot.delegation) is not None and not found.is_ended:
                case.update(cwd_ids=event.cwd_ids)
        case _:
            assert_never(event)
    return case.finish()


def _shifted(delegation: Delegation, by_s: float) -> dict[str, Any]:
    """The instants of a delegation after the wall clock was set."""
    waiting = delegation.waiting
    if waiting is not None:
        waiting = structs.replace(
            waiting,
            since_at=waiting.since_at + by_s,
            until_at=waiting.until_at + by_s,
            limit_at=waiting.limit_at + by_s,
        )

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    attempts = tuple(
        structs.replace(
            one,
            started_at=one.started_at + by_s,
            answered_at=moved(one.answered_at),
            patience_until_at=moved(one.patience_until_at),
            tries_at=moved(one.tries_at),
            waits_until_at=moved(one.waits_until_at),
        )
        if one.ended_at is None
        else one
        for one in delegation.attempts
    )
    marks = tuple(
        structs.replace(
            one,
            since_at=one.since_at + by_s,
            before=None if one.before is None else shift_outage(one.before, by_s),
        )
        for one in delegation.marks
    )
    outcome = delegation.outcome
    if outcome is not None:
        outcome = structs.replace(outcome, retry_at=moved(outcome.retry_at))
    return {
        "outcome": outcome,
        "attempts": attempts,
        "waiting": waiting,
        "marks": marks,
        "questions": shifted(delegation.questions, by_s),
        "rests_until_at": moved(delegation.rests_until_at),
        "deadline_at": moved(delegation.deadline_at),
        "last_activity_at": moved(delegation.last_activity_at),
    }
