"""
Failed turns of opencode sessions: whether, where to and how they go on.

    TurnFailed ──▶ abort ──▶ revert ──▶ prompt ──▶ done        `Session.rescue.step` is what is
                     │          │          │                   done next, or under way: a daemon
                     └──────────┴──────────┴──▶ failed, gone    that comes back resumes there

The rescue on record is the lock of the session. It ends with the acceptance of the message by
the next model, not with its answer; a failure of that one is a failure of another turn. It also
ends, and the session is left as it is, when the user stops the turn, and when it is too old.

The steps of a failed compaction are the same: what is taken back is the request for it, and what
is sent is a request to the next model. No turn is touched.

`Session.rescue` is both the lock and the step from which a later daemon resumes. opencode answers
without end a message that sorts behind its answer, so new message ids are taken from the session's
last one, never from our clock. Steps older than 60 s, and rescues older than 10 minutes, are
reported and left alone. A subagent is moved only from inside of opencode, by the plugin: opencode
gives its parent an error as soon as it is stopped. Elsewhere, and after the first effect, the
subagent is stopped past patience, and the reason stands in its parent's error.
"""

from typing import Literal

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.decision_log import model_words
from fallbackd.core.events import RescueAdvanced, RescueProgress, TurnFailed
from fallbackd.core.opencode.session import (
    begun,
    chosen_by_user,
    closed,
    moved_on,
    new_session,
    placed,
    told,
    without_running,
)
from fallbackd.core.opencode.turns import Ruled, rule_on
from fallbackd.core.records import Hop, Message, Rescue, Session
from fallbackd.core.routing.suggest import duration

AWAY_S = 60.0
"""A rescue whose step is older has lost its server or its owner, and is not continued."""
LONGEST_S = 600.0
"""Limit of a whole rescue: what was asked so long ago may not be wanted any more."""
_STEPS: frozenset[RescueProgress] = frozenset({"resumed", "abort", "revert", "prompt"})
"""Steps not taken any more once the rescue is too old."""


def turn_failed(case: Case, event: TurnFailed) -> Ruled:
    known = case.snapshot.session
    session = known or new_session(
        case, event.session, event.backend, server=event.server, project=event.project
    )
    session = placed(session, server=event.server, project=event.project, role=event.role)
    late = _late(case, event, session)
    if late is not None:
        case.keep_session(structs.replace(session, ignored_reports=session.ignored_reports + 1))
        return Ruled(ruling=late, failure=event.failure)
    if session.rescue is not None:  # of an owner that is gone
        session = _unlocked(case, session)
    if session.message is None or session.message.id != event.message:
        if not event.compacts:  # its model is the server's choice
            session = chosen_by_user(case, session, event.backend)
        session = begun(case, session, event.message, event.backend)
    assert session.message is not None
    ruled, session = rule_on(case, event, session, session.message)
    case.keep_session(structs.replace(session, last_used_at=case.now))
    return ruled


def _late(case: Case, event: TurnFailed, session: Session) -> Literal["late", "busy"] | None:
    """About a turn or a model that was left already, or one that is being left now."""
    rescue, message = session.rescue, session.message
    if event.is_late or event.message in session.superseded:
        return "late"
    if message is not None and message.id == event.message and message.backend != event.backend:
        return "late"
    if rescue is not None and not _is_expired(rescue, now=case.now):
        return "busy"
    return None


def _is_expired(rescue: Rescue, *, now: float) -> bool:
    return not (0 <= now - rescue.began_at < AWAY_S and now - _since(rescue) < LONGEST_S)


def _since(rescue: Rescue) -> float:
    """Return when the first step of a rescue began."""
    return rescue.since_at or rescue.began_at


def _unlocked(case: Case, session: Session) -> Session:
    rescue = session.rescue
    if rescue is not None and rescue.lease is not None:
        case.give_back(rescue.lease)
    return structs.replace(session, rescue=None)


def rescue_advanced(case: Case, event: RescueAdvanced) -> bool:
    """False: it is not the rescue of this session any more, and its owner has to stop."""
    session = case.snapshot.session
    rescue = None if session is None else session.rescue
    if session is None or rescue is None or rescue.id != event.rescue:
        return False
    if event.outcome in _STEPS and _is_expired(rescue, now=case.now):
        age = duration(case.now - _since(rescue))
        _failed(case, session, rescue, f"it was interrupted, and began {age} ago")
        return False
    match event.outcome:
        case "abort" | "revert" | "prompt":
            step = structs.replace(rescue, step=event.outcome, began_at=case.now)
            case.keep_session(structs.replace(session, rescue=step))
        case "gone":
            _unlocked(case, session)
            case.drop_session_id(session.session)
        case "stopped":
            case.keep_session(without_running(_unlocked(case, session)))
        case "failed":
            _failed(case, session, rescue, event.detail)
        case "done":
            case.keep_session(_done(case, session, rescue, sent=event.message))
    return True


def _failed(case: Case, session: Session, rescue: Rescue, why: str) -> None:
    text = (
        f"the change from {model_words(rescue.left)} to {model_words(rescue.to)} failed at"
        f" {rescue.step}: {why}. {_cure(rescue)}"
    )
    case.keep_session(
        told(
            case,
            _unlocked(case, session),
            f"failed:{rescue.message}:{rescue.step}",  # the server's next try begins another one
            "failed",
            route=(rescue.left, rescue.to),
            reason=rescue.reason,
            text=text,
        )
    )


def _cure(rescue: Rescue) -> str:
    if rescue.compacts:
        return f"The session is not compacted: choose {rescue.model} and use /compact"
    match rescue.step:
        case "abort":
            return f"The session was not changed: stop the turn, choose {rescue.model} and send it"
        case "revert":
            return f"The turn was stopped: choose {rescue.model} and send the message again"
        case "prompt" if rescue.reverts:
            return f"The message was taken back: /redo shows it, or send it again to {rescue.model}"
        case _:
            return f'The turn was stopped: send "continue" to {rescue.model}'


def _done(case: Case, session: Session, rescue: Rescue, *, sent: str) -> Session:
    """The next model has the message: a turn of its own, that continues the same work."""
    session = closed(case, structs.replace(session, rescue=None))
    case.meters.count_hop(rescue.left, rescue.to, rescue.reason)
    session = moved_on(
        case,
        session,
        Hop(
            at=case.now,
            from_backend=rescue.left,
            to_backend=rescue.to,
            trigger="reactive",
            reason=rescue.reason,
            evidence=rescue.evidence,
        ),
    )
    message = Message(
        id=sent or rescue.new_message,
        backend=rescue.to,
        began_at=case.now,
        lease=rescue.lease,
        compacts=rescue.compacts,
        turn=rescue.turn,
    )
    return structs.replace(session, message=message)
