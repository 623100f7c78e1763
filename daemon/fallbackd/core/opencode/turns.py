"""Turns of opencode sessions: those that go well, and the rules about those that fail."""

from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.callers.lease import Following, denied, ended_by, fail_over, marked, named
from fallbackd.core.case import Case
from fallbackd.core.decision_log import model_words
from fallbackd.core.events import (
    RedirectAsked,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)
from fallbackd.core.failures import Failure
from fallbackd.core.ids import LEASE_PREFIX, AttemptId, BackendId
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
    told,
    told_outage,
    with_usage,
    without_running,
)
from fallbackd.core.policy import Backend, Policy, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Halt, Hop, Message, Rescue, Session, Tried, Turn, Verdict
from fallbackd.core.routing.candidates import Choice
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.scopes import find_backend
from fallbackd.core.upkeep import tell_recovery
from fallbackd.core.work.offline import own_trouble
from fallbackd.core.work.outages import search
from fallbackd.core.work.resolution import request_after, turn_for


class Redirect(Struct, frozen=True, kw_only=True):
    """The model that a message is to be sent to. `model` null: the one that it names."""

    model: str | None = None
    reason: str | None = None
    retry_at: float | None = None
    """Time when the first model is available again, if none is now."""
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
    Decide where a message is sent: to another model only while its own is rate-limited, broken or
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
    """Return whether a message that is sent now waits for the end of another turn."""
    message = session.message
    return session.rescue is not None or (message is not None and message.running)


def _is_decided(session: Session, backend: BackendId) -> bool:
    """
    Return whether the message goes to a backend by a decision of before, whose trial is leased.
    """
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
        case.meters.count_hop(hop.from_backend, hop.to_backend, reason)
        session = moved_on(case, session, hop)
    case.keep_session(session)
    return Redirect(
        model=model_at_server(choice.entry, choice.backend), reason=reason, verdicts=verdicts
    )


# Rules for a failed turn of an opencode session, of which the first that applies counts.


BEFORE_ALL = 0.0
"""A failure of so early an attempt is no news: it may state a time, and counts for nothing."""
NOT_COVERED = frozenset({"task", "poison", "format_error", "fallback_on", "max_attempts"})
"""Bounds that leave a turn to its user: another model would not help, or must not be tried."""
Ruling = Literal[
    "rescue",
    "late",
    "busy",
    "switched_off",
    "not_covered",
    "no_chain",
    "exhausted",
    "depth",
    "outage",
    "partial",
    "child",
    "awaited",
    "unknown_model",
]


class Ruled(Struct, frozen=True, kw_only=True):
    """The consequence of a failed turn."""

    ruling: Ruling
    failure: Failure
    rescue: Rescue | None = None
    stops: bool = False
    """The turn waits in vain: it is to be stopped, and nothing sent in its place."""
    text: str = ""
    """For the log."""


class _Failed(Struct, frozen=True, kw_only=True):
    """A failed turn, with what the chain has beyond it."""

    event: TurnFailed
    failure: Failure
    message: Message
    turn: Turn
    halt: Halt | None
    following: Following | None

    @property
    def choice(self) -> Choice | None:
        found = None if self.halt is not None else self.following
        return None if found is None else found.resolved.choice


def rule_on(
    case: Case, event: TurnFailed, session: Session, message: Message
) -> tuple[Ruled, Session]:
    """Decide what is done about a failed turn: the first rule that says something counts."""
    backend = find_backend(case.policy, event.backend)
    if backend is None:
        return Ruled(ruling="unknown_model", failure=event.failure), session
    role = role_of(case.policy, event.role)
    turn = message.turn or turn_for(
        case,
        candidates_of(case, event.backend, event.role, session),
        role,
        session,
        at_server=True,
    )
    failure = own_trouble(case, backend, event.failure, has_route=event.has_route, marks=turn.marks)
    failure = failure or event.failure
    message, halt = _tried(case, event, message, turn, backend, failure)
    assert message.turn is not None
    session = structs.replace(session, message=message)
    if not case.policy.rescues or (role is not None and not role.enabled):
        return Ruled(ruling="switched_off", failure=failure), session
    following = None if halt is not None else fail_over(case, message.turn, may_try=True)
    if following is not None:
        halt = following.halt
        denied(case, following)
    failed = _Failed(
        event=event,
        failure=failure,
        message=message,
        turn=message.turn,
        halt=halt,
        following=following,
    )
    for rule in _RULES:
        ruled = rule(case, failed, session)
        if ruled is not None:
            return ruled
    return _rescued(case, failed, session)


def _tried(
    case: Case,
    event: TurnFailed,
    message: Message,
    turn: Turn,
    backend: Backend,
    failure: Failure,
) -> tuple[Message, Halt | None]:
    """The message with its model tried and marked, and its lease given back."""
    if message.is_marked:  # once more about the same call
        turn = structs.replace(turn, tried=turn.tried[:-1])
    tried = Tried(backend=event.backend, model=backend.model).failed_with(failure)
    turn, halt = ended_by(case, turn, tried)
    if halt is None:
        started_at = BEFORE_ALL if message.is_marked else message.began_at
        turn = marked(case, turn, failure, started_at=started_at, luck=event.luck)
    if message.lease is not None:
        case.give_back(message.lease)
    return structs.replace(message, is_marked=True, turn=turn, lease=None), halt


def _not_covered(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    if failed.halt is None or failed.halt.bound not in NOT_COVERED:
        return None
    return Ruled(ruling="not_covered", failure=failed.failure, text=failed.halt.why), session


def _of_subagent(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    """A subagent is moved before its first effect, where its parent waits for the other model."""
    event = failed.event
    may_move = event.can_move and not event.wrote and failed.choice is not None
    if not event.is_child or may_move:
        return None
    return _child(case, event, failed.failure, session)


def _awaited(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    """
    Leave what a program waits for to the retries of its server: the program would take the end of
    the turn for its answer, and would not see where the work continues.
    """
    event, reason = failed.event, failed.failure.reason.value
    if not event.is_awaited or event.is_child:
        return None
    session = told(
        case,
        session,
        f"awaited:{failed.message.id}",
        "failed",
        route=(event.backend, ""),
        reason=reason,
        text=f"{model_words(event.backend)} failed ({reason}), and a program waits for this turn:"
        " it is left to the retries of opencode. Through the gateway of fallbackd it would move",
    )
    return Ruled(ruling="awaited", failure=failed.failure), session


def _alone(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    if len(failed.turn.candidates) > 1:
        return None
    event, reason = failed.event, failed.failure.reason.value
    text = f"no chain is configured for agent {event.role or 'unknown'}"
    session = told(
        case,
        session,
        f"no_chain:{event.message}",
        "failed",
        route=(event.backend, ""),
        reason=reason,
        text=f"{model_words(event.backend)} failed ({reason}), and {text}: choose another model, or"
        " add a chain to model-fallback.json",
    )
    return Ruled(ruling="no_chain", failure=failed.failure, text=text), session


def _bounded(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    """Stop following the chain where a limit forbids it, and notify the user."""
    halt, event, reason = failed.halt, failed.event, failed.failure.reason.value
    if halt is None or halt.bound not in ("max_fallback_depth", "on_outage"):
        return None
    session = told(
        case,
        session,
        f"{halt.bound}:{failed.message.id}",
        "outage",
        route=(event.backend, ""),
        reason=reason,
        text=f"{model_words(event.backend)} failed ({reason}): {halt.why}; the message stays as it"
        " is",
    )
    ruling: Ruling = "depth" if halt.bound == "max_fallback_depth" else "outage"
    return Ruled(ruling=ruling, failure=failed.failure, text=halt.why), session


def _after_effects(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    """The turn may have changed files, and another model must not continue by itself then."""
    event, reason = failed.event, failed.failure.reason.value
    if not event.wrote or event.compacts or case.policy.defaults.on_partial == "continue":
        return None
    session = told(
        case,
        session,
        f"partial:{failed.message.id}",
        "failed",
        route=(event.backend, ""),
        reason=reason,
        text=f"{model_words(event.backend)} failed ({reason}) after it may have changed files, and"
        ' on_partial is not "continue": send "continue" to another model, or undo the message',
    )
    return Ruled(ruling="partial", failure=failed.failure), session


def _exhausted(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session] | None:
    if failed.following is not None and failed.following.resolved.choice is not None:
        return None
    event, failure = failed.event, failed.failure
    retry_at = None if failed.following is None else failed.following.resolved.retry_at
    if failure.shrink_input:
        session = _told_too_large(case, event, failure, session)
    else:
        session = told_outage(case, session, event.backend, failure.reason.value, retry_at)
    return Ruled(ruling="exhausted", failure=failure), session


_RULES = (_not_covered, _of_subagent, _alone, _awaited, _bounded, _after_effects, _exhausted)


def _rescued(case: Case, failed: _Failed, session: Session) -> tuple[Ruled, Session]:
    assert failed.following is not None
    event = failed.event
    rescue = _rescue(case, event, failed.failure, failed.following, on_lease=_lease_name(event))
    session = structs.replace(session, rescue=rescue)
    return Ruled(ruling="rescue", failure=failed.failure, rescue=rescue), session


def _child(
    case: Case, event: TurnFailed, failure: Failure, session: Session
) -> tuple[Ruled, Session]:
    """
    The parent of a subagent gets the error and continues. It gets it only once the turn has
    ended, which the server's own retries may put off for hours.
    """
    since_at, stated_at = event.retries_since_at, failure.stated_reset_at
    stops = False
    if since_at is not None:
        until_at = since_at + case.policy.patience_s("interactive")
        if case.now < until_at and (stated_at is None or stated_at <= until_at):
            text = "a subagent is retrying for now"
            return Ruled(ruling="child", failure=failure, text=text), session
        # Without a network its parent would come no further.
        stops = failure.reason is not Reason.LOCAL_NETWORK
    how = "is stopped" if stops else "has ended" if since_at is None else "is retrying"
    session = told(
        case,
        session,
        f"child:{event.message}",
        "failed",
        route=(event.backend, ""),
        reason=failure.reason.value,
        text=f"{model_words(event.backend)} failed ({failure.reason.value}) in a subagent, which"
        f" {how}" + ("" if how == "is retrying" else "; its parent gets the error and continues"),
    )
    text = f"{model_words(event.backend)} failed: {failure.reason.value}"
    if failure.evidence:
        text += f" ({failure.evidence})"
    return Ruled(ruling="child", failure=failure, stops=stops, text=text), session


def _told_too_large(case: Case, event: TurnFailed, failure: Failure, session: Session) -> Session:
    what = "The conversation" if event.compacts else "The message"
    return told(
        case,
        session,
        f"context:{event.message}",
        "failed",
        route=(event.backend, ""),
        reason=failure.reason.value,
        text=f"{what} does not fit into the context of {model_words(event.backend)}"
        f" ({failure.reason.value}), and no available model of its chain has a larger one. Compact"
        " the session, or choose a model with a larger context",
    )


def _lease_name(event: TurnFailed) -> AttemptId:
    return AttemptId(f"{LEASE_PREFIX}{event.rescue}")


def _rescue(
    case: Case, event: TurnFailed, failure: Failure, following: Following, *, on_lease: AttemptId
) -> Rescue:
    choice = following.resolved.choice
    assert choice is not None
    model = model_at_server(choice.entry, choice.backend)
    assert model is not None, "only what a server has is a candidate"
    return Rescue(
        id=event.rescue,
        message=event.message,
        left=event.backend,
        to=choice.backend.id,
        model=model,
        new_message=event.new_message,
        reverts=event.compacts or not event.wrote,
        role=event.role,
        reason=failure.reason.value,
        evidence=failure.evidence,
        began_at=case.now,
        since_at=case.now,
        lease=lease(case, choice, on_lease),
        compacts=event.compacts,
        continues=event.continues,
        turn=following.turn,
    )
