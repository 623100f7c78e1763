"""
The one place where state changes: an event and a snapshot in, changes and effects out.

`decide` is pure. The store runs it inside a transaction and may run it again; the engine
performs the effects after the changes are durable.

Functions are found by the type of an event, change or effect in tables (`DECIDED` here, `KEYS`,
`WORDS`, `ADDED`, `WRITTEN` elsewhere). A `match` says the same, but a class of `msgspec` that does
not fit costs a call each time, and an event passes dozens of them. `tests/test_architecture.py`
holds that each table is complete and each function takes its type.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fallbackd.core import events, upkeep
from fallbackd.core.callers import report
from fallbackd.core.case import Case
from fallbackd.core.decision import Decision
from fallbackd.core.events import Event
from fallbackd.core.opencode import rescues, turns
from fallbackd.core.opencode.session import in_project, project_of
from fallbackd.core.policy import Policy
from fallbackd.core.records import Snapshot
from fallbackd.core.work import admit, answer, ended, resume, running, sessions, standby


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
    kind = type(event)
    if kind in ANSWERED:
        return case.finish(answer=ANSWERED[kind](case, event))
    return DECIDED[kind](case, event) or case.finish()


DECIDED: Mapping[type, Callable[[Case, Any], Decision | None]] = {
    events.DelegateRequested: admit.delegate_requested,
    events.CancelRequested: admit.cancel_requested,
    events.KeepRequested: running.keep_requested,
    events.StandbyAsked: standby.standby_asked,
    events.QuestionAnswered: answer.question_answered,
    events.Woke: running.woke,
    events.Resumed: resume.resumed,
    events.RecordsFound: resume.records_found,
    events.WorkspaceMoved: running.workspace_moved,
    events.AttemptStarted: running.attempt_started,
    events.ConversationSeen: running.conversation_seen,
    events.AttemptAnswered: running.attempt_answered,
    events.AttemptRetrying: running.attempt_retrying,
    events.AttemptGaveUp: running.attempt_gave_up,
    events.AttemptEnded: ended.attempt_ended,
    events.ResolveRequested: report.resolve_requested,
    events.Reported: report.reported,
    events.SessionEnded: sessions.session_ended,
    events.SessionCompacted: sessions.session_compacted,
    events.TurnBegan: turns.turn_began,
    events.TurnAnswered: turns.turn_answered,
    events.TurnEnded: turns.turn_ended,
    events.TurnUsed: turns.turn_used,
    events.ReadinessSeen: upkeep.readiness_seen,
    events.CredentialSeen: upkeep.credential_seen,
    events.LoginAnswered: upkeep.login_answered,
    events.QuotaSeen: upkeep.quota_seen,
    events.SharedSeen: upkeep.shared_seen,
    events.ConfigReloaded: upkeep.config_reloaded,
    events.Ticked: upkeep.ticked,
    events.ClockStepped: upkeep.clock_stepped,
}
"""By the type of the event. What is decided is what the case holds at the end, if nothing else."""

ANSWERED: Mapping[type, Callable[[Case, Any], Any]] = {
    events.TurnFailed: rescues.turn_failed,
    events.RedirectAsked: turns.redirect_asked,
    events.RescueAdvanced: rescues.rescue_advanced,
    events.HealthMarked: upkeep.health_marked,
    events.HealthCleared: upkeep.health_cleared,
    events.HealthPaused: upkeep.health_paused,
    events.HealthResumed: upkeep.health_resumed,
}
"""Those whose asker gets at once what is returned here."""
