"""Answers of people to questions, and what comes of them."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.decision import Decision, Rejection, RejectionKind
from fallbackd.core.events import QuestionAnswered
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND
from fallbackd.core.records import USE, AnsweredBy, Delegation, HandedBack, Question, find
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.apply import advance, apply, close_question
from fallbackd.core.work.ask import MIN_REST_S, REST_S, return_at
from fallbackd.core.work.outages import service_of
from fallbackd.core.work.steps import ended
from fallbackd.core.work.workspaces import writer_beside


def question_answered(case: Case, event: QuestionAnswered) -> Decision:
    delegation = case.snapshot.delegation
    question = None if delegation is None else find(delegation.questions, event.question)
    if delegation is None or question is None:
        return _reject(
            "unknown_question",
            f"no question {event.question!r}; `fallbackd-client questions` lists the open ones",
            event,
        )
    if (rejected := _not_now(case, event, delegation, question)) is not None:
        return rejected
    answered = structs.replace(
        question,
        answered_at=case.now,
        answered_by=AnsweredBy(uid=event.uid, pid=event.pid, attempt=event.attempt),
        choice=event.choice,
        note=event.note,
        closed_at=case.now,
    )
    close_question(case, answered, text=f"{answered.question} is answered: {answered.choice}")
    case.update(last_activity_at=case.now)
    by = event.attempt or f"user {event.uid}"
    case.tell(
        delegation,
        "question answered",
        outcome=f"{by} chose {answered.choice} for {answered.question}",
        evidence=answered.note or "",
    )
    _act(case, answered)
    return case.finish(answer=answered)


def _not_now(
    case: Case, event: QuestionAnswered, delegation: Delegation, question: Question
) -> Decision | None:
    """Return why this choice cannot be made; None: it can."""
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
    if case.snapshot.draining and goes_on:
        return _reject(
            "draining",
            f"the daemon is draining and starts nothing; {question.question} stays open for the "
            "next one",
            event,
        )
    writer = writer_beside(case, delegation) if goes_on else None
    if writer is not None:
        return _reject(
            "workspace",
            f"{delegation.cwd} is in use by {writer.delegation} now; {question.question} stays "
            "open: answer it again when that has ended",
            event,
        )
    return None


def _reject(kind: RejectionKind, message: str, event: QuestionAnswered) -> Decision:
    data = {"question": event.question, "delegation": event.delegation}
    return Decision(rejection=Rejection(kind=kind, message=message, data=data))


def _why_closed(question: Question) -> str:
    if question.choice is None:
        return f"{question.question} is closed: its work went on or ended without an answer"
    return f"{question.question} was answered before: {question.choice}; nothing has changed"


def _act(case: Case, answered: Question) -> None:
    attempts = case.delegation.attempts
    last = attempts[-1].failure if attempts else None
    event = "question answered"
    match answered.choice:
        case "skip":
            if last is not None:
                last = structs.replace(last, detail="skipped")
            message = "a person chose to do without it (skipped)"
            apply(case, ended("refused", message, failure=last), event=event)
        case "stop":
            message = "a person chose to stop it"
            apply(case, ended("cancelled", message, failure=last), event=event)
        case "hand_back":
            message = "a person chose that the caller does it"
            hint = _hint(case)
            step = ended("handed_back", message, failure=last, handed_back=hint)
            apply(case, step, event=event)
        case "wait":
            case.update(rests_until_at=_waits_until(case))
            advance(case, event="waits for a service")
        case str(choice) if choice.startswith(USE):
            case.update(forced=BackendId(choice.removeprefix(USE)))
            advance(case, event="chosen by a person")
        case _:
            raise ValueError(f"no such choice: {answered.choice}")


def _hint(case: Case) -> HandedBack:
    """With which model the caller does it, where the chain says so."""
    for entry in case.delegation.turn.candidates:
        backend = find_backend(case.policy, entry.backend)
        if backend is not None and backend.kind == IN_SESSION_KIND:
            return HandedBack(model=entry.model or backend.model, effort=entry.effort)
    return HandedBack()


def _waits_until(case: Case) -> float:
    """
    Return when the first service that is out is tried; where none is, when a candidate returns.
    """
    verdicts = case.delegation.verdicts
    due = [at for verdict in verdicts if (at := service_of(case, verdict)[1])]
    known = [at for at in due or (return_at(verdicts, now=case.now),) if at is not None]
    at = min((one for one in known if one > case.now), default=case.now + REST_S)
    return max(case.now + MIN_REST_S, at)
