"""A question to a person is asked, closed by an answer, or no longer needed."""

from typing import assert_never

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import AskPerson, GoOn
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.questions import Question, options_with, question_id
from fallbackd.core.views import last_event
from fallbackd.core.work.ask import return_at
from fallbackd.core.work.choices import with_rules
from fallbackd.core.work.giving_up import give_up
from fallbackd.core.work.sessions import take_session
from fallbackd.core.work.steps import (
    Ask,
    Clear,
)
from fallbackd.core.work.transitions import enter, note_outage, wake_at


def clear(case: Case, step: Clear) -> None:
    one = case.delegation
    match step.what:
        case "line":
            case.update(blocked_by=None, waiting=None)
            take_session(case)
        case "question":
            assert one.question is not None
            closes = structs.replace(one.question, closed_at=case.now)
            close_question(case, closes, text=step.outcome)
            case.tell(one, "service recovered", outcome=step.outcome, verdicts=step.verdicts or ())
        case "forced":
            case.update(forced=None)
            case.tell(one, "chosen by a person", outcome=step.outcome, verdicts=step.verdicts or ())
        case "retry":
            last = one.attempts[-1]
            assert last.failure is not None
            backend = find_backend(case.policy, last.backend)
            case.update(waiting=None)
            give_up(case, last.failure, backend, luck=case.luck)
        case _:
            assert_never(step.what)


def close_question(case: Case, question: Question, *, text: str) -> None:
    """The open question is closed as `question` says; what comes next is planned after it."""
    enter(case, "waiting", questions=(*case.delegation.questions[:-1], question))
    by = question.answered_by
    case.note(
        "question.answered",
        case.delegation,
        question=question.question,
        choice=question.choice,
        note=question.note,
        answered_by=None if by is None else structs.asdict(by),
        text=text,
    )
    case.effects.append(GoOn(delegation=case.delegation.delegation))


def ask(case: Case, step: Ask, *, event: str) -> None:
    one = case.delegation
    verdicts = one.verdicts if step.verdicts is None else step.verdicts
    note_outage(case, step.out)
    deadlines = [] if one.deadline_at is None else [one.deadline_at]
    if one.question_timeout_s is not None:
        deadlines.append(case.now + one.question_timeout_s)
    question = Question(
        question=question_id(one.delegation, len(one.questions) + 1),
        delegation=one.delegation,
        session=one.session,
        role=one.role,
        asked_by=one.asked_by,
        kind=step.kind,
        text=with_rules(step.text, step.usable),
        options=options_with(step.usable, wait=step.wait),
        opened_at=case.now,
        deadline_at=min(deadlines, default=None),
    )
    choices = [each.choice for each in question.options]
    enter(
        case,
        "awaiting_answer",
        verdicts=verdicts,
        questions=(*one.questions, question),
        waiting=None,
        forced=None,
        rests_until_at=None,
        phase=None,
        retry_at=return_at(verdicts, now=case.now),
    )
    case.wake_waiting()  # others may work in its directory meanwhile
    kind, backend, fields = last_event(case.delegation)
    case.note(kind, one, backend=backend, **fields)
    case.tell(
        one,
        event,
        outcome=f"asks {question.question}: {question.text}",
        verdicts=verdicts,
        on_outage=one.turn.on_outage,
        choices=choices,
    )
    case.effects.append(AskPerson(delegation=one.delegation))
    if question.deadline_at is not None:
        case.effects.append(wake_at(case, question.deadline_at))
