"""What a person has chosen, and what comes of it."""

from msgspec import structs

from fallbackd.core.draft import Draft
from fallbackd.core.effects import GoOn
from fallbackd.core.events import QuestionAnswered
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND
from fallbackd.core.questions import USE, AnsweredBy, Question, find
from fallbackd.core.records import (
    Decision,
    Delegation,
    HandedBack,
    Rejection,
    RejectionKind,
    Session,
)
from fallbackd.core.work.admit import session_of
from fallbackd.core.work.ask import MIN_REST_S, REST_S, return_at
from fallbackd.core.work.ends import end
from fallbackd.core.work.outages import service_of
from fallbackd.core.work.walk import walk
from fallbackd.core.work.workspaces import writer_beside


def question_answered(draft: Draft, event: QuestionAnswered) -> Decision:
    delegation = draft.snapshot.delegation
    question = None if delegation is None else find(delegation.questions, event.question)
    if delegation is None or question is None:
        return _reject(
            "unknown_question",
            f"no question {event.question!r}; `fallbackd-client questions` lists the open ones",
            event,
        )
    if not question.is_open or delegation.cancelling or delegation.outcome is not None:
        return _reject("answered", _why_closed(question), event)
    choices = [one.choice for one in question.options]
    if event.choice not in choices:
        return _reject(
            "choice",
            f"{event.choice!r} is none of the choices of {question.question}; "
            f"choose one of {', '.join(choices)}",
            event,
        )
    goes_on = event.choice == "wait" or event.choice.startswith(USE)
    if draft.snapshot.draining and goes_on:
        return _reject(
            "draining",
            f"the daemon is draining and starts nothing; {question.question} stays open for the "
            "next one",
            event,
        )
    writer = writer_beside(draft, delegation) if goes_on else None
    if writer is not None:
        return _reject(
            "workspace",
            f"{delegation.cwd} is in use by {writer.delegation} now; {question.question} stays "
            "open: answer it again when that has ended",
            event,
        )
    answered = structs.replace(
        question,
        answered_at=draft.now,
        answered_by=AnsweredBy(uid=event.uid, pid=event.pid),
        choice=event.choice,
        note=event.note,
        closed_at=draft.now,
    )
    delegation = structs.replace(
        delegation,
        questions=(*delegation.questions[:-1], answered),
        state="waiting",
        last_activity_at=draft.now,
    )
    draft.note(
        "question.answered",
        delegation,
        question=answered.question,
        choice=answered.choice,
        note=answered.note,
        answered_by={"uid": event.uid, "pid": event.pid},
        text=f"{answered.question} is answered: {answered.choice}",
    )
    draft.tell(
        delegation,
        "question answered",
        outcome=f"user {event.uid} chose {answered.choice} for {answered.question}",
        evidence=answered.note or "",
    )
    draft.put_delegation(delegation)
    draft.effects.append(GoOn(delegation=delegation.delegation))
    _act(draft, delegation, session_of(draft, delegation), answered)
    return draft.finish(answer=answered)


def _reject(kind: RejectionKind, message: str, event: QuestionAnswered) -> Decision:
    data = {"question": event.question, "delegation": event.delegation}
    return Decision(rejection=Rejection(kind=kind, message=message, data=data))


def _why_closed(question: Question) -> str:
    if question.choice is None:
        return f"{question.question} is closed: its work went on or ended without an answer"
    return f"{question.question} was answered before: {question.choice}; nothing has changed"


def _act(draft: Draft, delegation: Delegation, session: Session, answered: Question) -> None:
    last = delegation.attempts[-1].failure if delegation.attempts else None
    match answered.choice:
        case "skip":
            if last is not None:
                last = structs.replace(last, detail="skipped")
            message = "a person chose to do without it (skipped)"
            end(draft, delegation, session, state="refused", failure=last, message=message)
        case "stop":
            message = "a person chose to stop it"
            end(draft, delegation, session, state="cancelled", failure=last, message=message)
        case "hand_back":
            end(
                draft,
                delegation,
                session,
                state="handed_back",
                failure=last,
                message="a person chose that the caller does it",
                handed_back=_hint(draft, delegation),
            )
        case "wait":
            at = _waits_until(draft, delegation)
            walk(
                draft,
                structs.replace(delegation, rests_until_at=at),
                session,
                event="waits for a service",
            )
        case str(choice) if choice.startswith(USE):
            forced = BackendId(choice.removeprefix(USE))
            walk(
                draft,
                structs.replace(delegation, forced=forced),
                session,
                event="chosen by a person",
            )
        case _:
            raise ValueError(f"no such choice: {answered.choice}")


def _hint(draft: Draft, delegation: Delegation) -> HandedBack:
    """With which model the caller does it, where the chain says so."""
    for entry in delegation.candidates:
        backend = find_backend(draft.policy, entry.backend)
        if backend is not None and backend.kind == IN_SESSION_KIND:
            return HandedBack(model=entry.model or backend.model, effort=entry.effort)
    return HandedBack()


def _waits_until(draft: Draft, delegation: Delegation) -> float:
    """When the first service that is out is tried; where none is, when a candidate returns."""
    due = [at for verdict in delegation.verdicts if (at := service_of(draft, verdict)[1])]
    known = [at for at in due or (return_at(draft, delegation),) if at is not None]
    at = min((one for one in known if one > draft.now), default=draft.now + REST_S)
    return max(draft.now + MIN_REST_S, at)
