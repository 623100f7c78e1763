"""Turns of opencode sessions that go well, and messages that are about to be sent."""

from msgspec import Struct, structs

from fallbackd.core.callers.going_on import asked, named
from fallbackd.core.callers.lease import give_back
from fallbackd.core.draft import Draft
from fallbackd.core.events import RedirectAsked, TurnAnswered, TurnBegan, TurnUsed
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.opencode.session import (
    begun,
    candidates_of,
    chosen_by_user,
    lease,
    model_at_server,
    moved,
    new_session,
    placed,
    returned,
    role_of,
    told_outage,
    with_usage,
)
from fallbackd.core.records import Hop, Verdict
from fallbackd.core.upkeep.marks import tell_recovery
from fallbackd.core.work.outages import guard
from fallbackd.core.work.resolution import request_after


class Redirect(Struct, frozen=True, kw_only=True):
    """Which model a message is to be sent to. `model` null: to the one that it names."""

    model: str | None = None
    reason: str | None = None
    retry_at: float | None = None
    """Nobody is usable: the earliest return."""
    verdicts: tuple[Verdict, ...] = ()


def turn_began(draft: Draft, event: TurnBegan) -> None:
    session = draft.snapshot.session or new_session(
        draft, event.session, event.backend, server=event.server, project=event.project
    )
    session = placed(session, server=event.server, project=event.project, role=event.role)
    rescue = session.rescue
    is_ours = rescue is not None and event.message in (rescue.message, rescue.new_message)
    is_known = session.turn is not None and session.turn.message == event.message
    if not (is_ours or is_known or event.message in session.superseded):
        session = chosen_by_user(draft, session, event.backend)
        session = begun(draft, session, event.message, event.backend)
    draft.put_session(session)


def turn_answered(draft: Draft, event: TurnAnswered) -> None:
    """The first sign of the provider in a turn: it proves the model and ends its trial."""
    session = draft.snapshot.session
    turn = None if session is None else session.turn
    if session is None or turn is None or turn.message != event.message or turn.answered:
        return
    backend = find_backend(draft.policy, event.backend)
    if backend is not None:
        draft.succeed(backend, model=backend.model, credential=None, started_at=turn.began_at)
    draft.put_session(
        structs.replace(
            session,
            answered_by=event.backend,
            turn=structs.replace(turn, answered=True, lease=None),
            last_used_at=draft.now,
        )
    )


def turn_ended(draft: Draft) -> None:
    """The session is idle: the time to say that its original is back."""
    session = draft.snapshot.session
    if session is None:
        return
    after = session
    if session.turn is not None and session.turn.running:
        after = structs.replace(session, turn=structs.replace(session.turn, running=False))
    if after.current != after.original:
        after = tell_recovery(draft, after)
    if after is not session:
        draft.put_session(after)


def turn_used(draft: Draft, event: TurnUsed) -> None:
    session = draft.snapshot.session
    if session is None or event.message <= session.counted:
        return
    draft.count_usage(event.backend, event.usage)
    session = with_usage(session, event.backend, event.usage, at=event.at)
    draft.put_session(structs.replace(session, counted=event.message, last_used_at=draft.now))


def redirect_asked(draft: Draft, event: RedirectAsked) -> Redirect:
    """
    Where a message is to be sent: to another model only while its own is rate-limited, broken or
    paused. A model that recovers is the user's to use, whether it is under trial or not.
    """
    session = draft.snapshot.session or new_session(
        draft, event.session, event.backend, server=event.server, project=event.project
    )
    session = placed(session, server=event.server, project=event.project, role=event.role)
    rescue, turn = session.rescue, session.turn
    is_rescue = rescue is not None and event.backend == rescue.to
    if is_rescue or (turn is not None and turn.lease and event.backend == turn.backend):
        return Redirect()  # it was decided already, and its trial is leased
    if session.pending_lease is not None:
        give_back(draft, session.pending_lease)
        session = structs.replace(session, pending_lease=None)
    if event.backend not in (session.original, session.current):
        session = chosen_by_user(draft, session, event.backend)
    role = role_of(draft.policy, event.role)
    if not draft.policy.rescues or (role is not None and not role.enabled):
        draft.put_session(session)
        return Redirect()
    candidates = candidates_of(draft, event.backend, event.role, session)
    failover = asked(draft, candidates, role, session, at_server=True)
    request = request_after(draft.policy, failover)
    resolved = draft.resolve(candidates[:1], request)
    stays = resolved.choice is not None or resolved.in_trial
    if not stays:
        found = draft.resolve(candidates, request)
        resolved, _ = guard(draft, failover, candidates, request, found)
    choice = resolved.choice
    if choice is None and not stays:
        if len(candidates) > 1:
            reason = next((v.reason for v in resolved.verdicts if v.reason), "out of use")
            session = told_outage(draft, session, event.backend, reason, resolved.retry_at)
        draft.put_session(session)
        return Redirect(retry_at=resolved.retry_at, verdicts=resolved.verdicts)
    if choice is not None:
        session = structs.replace(
            session,
            pending_lease=lease(draft, choice, event.lease),
            failover=named(draft, failover, choice),
        )
    if choice is None or choice.backend.id == event.backend:
        if event.backend == session.original != session.current:
            session = returned(draft, session)
        draft.put_session(structs.replace(session, last_used_at=draft.now))
        return Redirect(verdicts=resolved.verdicts)
    reason = resolved.verdicts[0].reason or resolved.verdicts[0].state
    if session.current != choice.backend.id:
        hop = Hop(
            at=draft.now,
            from_backend=event.backend,
            to_backend=choice.backend.id,
            trigger="preemptive",
            reason=reason,
        )
        session = moved(draft, session, hop)
    draft.put_session(structs.replace(session, last_used_at=draft.now))
    return Redirect(
        model=model_at_server(choice.entry, choice.backend),
        reason=reason,
        verdicts=resolved.verdicts,
    )
