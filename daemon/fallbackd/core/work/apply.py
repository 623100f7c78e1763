"""Perform a step of the plan: starts, waits, questions and ends."""

from typing import assert_never

from msgspec import structs

from fallbackd.core.case import Case, reactive_hops
from fallbackd.core.decision import Answer, AskPerson, GoOn, StartAttempt, WakeAt
from fallbackd.core.failures import Failure
from fallbackd.core.policy import Backend
from fallbackd.core.records import (
    Attempt,
    Delegation,
    DelegationState,
    Ending,
    HandedBack,
    Hop,
    Question,
    closed,
    options_with,
    question_id,
)
from fallbackd.core.scopes import find_backend
from fallbackd.core.views import last_event
from fallbackd.core.work.ask import return_at, with_rules
from fallbackd.core.work.plan import plan
from fallbackd.core.work.retries import has_waited, with_waited
from fallbackd.core.work.sessions import (
    author_of,
    on_candidate,
    recall,
    resumed_conversation,
    take_session,
)
from fallbackd.core.work.standby import enter_standby, leave_standby
from fallbackd.core.work.starting import fallen, handoff, hop_to, new_attempt, note_hop, stays_with
from fallbackd.core.work.steps import (
    Ask,
    Clear,
    End,
    HandBack,
    Hold,
    Queue,
    Start,
    Step,
    Wait,
    ended,
)
from fallbackd.core.work.stopping import below, tell_parent
from fallbackd.core.work.transitions import enter, note_outage, wake_at

# A candidate that is given up: its mark, and the marks that are taken back.


def give_up(case: Case, failure: Failure, backend: Backend | None, *, luck: float) -> Failure:
    """
    Leave the candidate of the last attempt: mark it once, and release its lease.

    Returns:
        The failure, with the scope that was marked.
    """
    one = case.delegation
    attempt = one.attempts[-1]
    made = None
    if backend is not None:
        made = case.mark(
            failure,
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
            luck=luck,
            repeated=failure.wait_s is not None and has_waited(one, attempt, now=case.now),
        )
    case.release(attempt)
    policy = case.policy.reason(failure.reason, attempt.backend)
    case.tell(
        one,
        "attempt failed",
        outcome=f"leaves {attempt.backend}: {failure.reason.value}"
        + ("" if made is None else f", marks {made.scope}"),
        evidence=failure.evidence,
        signature=failure.signature,
        confidence=failure.confidence,
        window_s=None if policy is None else policy.window_s,
        wait_s=failure.wait_s,
    )
    if made is None:
        return failure
    failure = structs.replace(failure, scope=made.scope)
    case.update(
        attempts=(*one.attempts[:-1], structs.replace(attempt, failure=failure)),
        turn=structs.replace(one.turn, marks=(*one.turn.marks, made)),
    )
    return failure


def withdraw_marks(case: Case) -> None:
    """Take back the marks that the delegation has made."""
    turn = case.delegation.turn
    case.withdraw(turn.marks)
    case.update(turn=structs.replace(turn, marks=()))


# A question to a person is asked, closed by an answer, or no longer needed.


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


def advance(case: Case, *, event: str) -> None:
    """Put the delegation one step further. It has no attempt under way and is not ended."""
    while isinstance(step := plan(case), Clear):
        clear(case, step)
    apply(case, step, event=event)


def apply(case: Case, step: Step, *, event: str) -> None:
    """
    Args:
        event: What led to the step, for `explain`.
    """
    match step:
        case Start():
            _start(case, step, event=step.event or event)
        case Wait():
            _wait(case, step, event=event)
        case Queue():
            _queue(case, step)
        case Ask():
            ask(case, step, event=event)
        case HandBack():
            _hand_back(case, step, event=event)
        case End():
            _end(case, step, event=event)
        case Hold(is_nested=True):
            enter(case, "waiting")
        case Hold(until_at=until_at):
            if until_at is not None:
                case.effects.append(wake_at(case, until_at))
        case _:
            assert_never(step)


# --- steps -----------------------------------------------------------------------------------


def _start(case: Case, step: Start, *, event: str) -> None:
    if step.has_waited:
        case.update(waited=with_waited(case.delegation, case.delegation.attempts[-1]))
    if step.verdicts is not None:
        case.update(verdicts=step.verdicts)
    if not case.delegation.attempts:
        recall(case)
    leave_standby(case)
    one, choice = case.delegation, step.choice
    attempt = new_attempt(case, step)
    is_again = step.retry_of is not None or step.resumes is not None
    hop = None if is_again or step.rotates else hop_to(case, choice)
    if hop is None:
        case.keep_session(on_candidate(case.session, choice))
    else:
        _hopped(case, hop)
    case.meters.count_start(choice.backend.id, is_first=not one.attempts)
    case.meters.count_credential(choice.backend.id, choice.credential)
    enter(
        case,
        "running",
        active=choice.backend.id,
        attempts=(*one.attempts, attempt),
        waiting=None,
        forced=None,
        rests_until_at=None,
        retry_at=None,
        phase=None,
        last_activity_at=case.now,
    )
    case.tell(
        case.delegation,
        event,
        outcome=_words_of(step, attempt),
        verdicts=case.delegation.verdicts,
        attempt=one.attempts[-1].attempt if one.attempts else None,
        max_fallback_depth=one.turn.max_hops,
        hops=reactive_hops(case.delegation),
        **stays_with(case),
        **step.numbers,
    )
    case.move(attempt=attempt.attempt)
    case.effects.append(
        StartAttempt(
            attempt=attempt.attempt,
            delegation=one.delegation,
            backend=choice.backend.id,
            model=choice.model,
            effort=choice.entry.effort,
            credential=choice.credential,
            handoff=None if step.resumes is not None else handoff(one.attempts),
            resume=resumed_conversation(case.delegation, attempt),
        )
    )
    if one.deadline_at is not None:
        case.effects.append(
            WakeAt(at=one.deadline_at, delegation=one.delegation, purpose="deadline")
        )


def _hopped(case: Case, hop: Hop) -> None:
    one = case.delegation
    if hop.tier_to == "model" and hop.from_backend == hop.to_backend:
        warning = (
            f"the model {hop.from_model} of {hop.to_backend} is missing; {hop.to_model} is used"
        )
        case.update(warnings=(*one.warnings, warning))
    case.update(hops=(*one.hops, hop))
    fallen(case, hop)


def _words_of(step: Start, attempt: Attempt) -> str:
    return (
        f"starts {attempt.attempt} on {attempt.backend}"
        + (" as a trial" if attempt.trial else "")
        + (" once more" if step.retry_of is not None else "")
        + ("" if step.resumes is None else f" in the conversation of {step.resumes}")
        + (f" with credential {step.choice.credential}" if step.rotates else "")
    )


def _wait(case: Case, step: Wait, *, event: str) -> None:
    one = case.delegation
    if step.verdicts is not None:
        case.update(verdicts=step.verdicts)
    is_news = one.state != "waiting" or one.waiting is None
    enter_standby(case, step)
    if step.outcome and is_news:
        case.tell(
            one,
            event,
            outcome=step.outcome,
            verdicts=step.verdicts or (),
            evidence=step.evidence,
            **step.numbers,
        )
    enter(case, "waiting", waiting=step.waiting)
    case.effects.append(wake_at(case, step.waiting.until_at))


def _queue(case: Case, step: Queue) -> None:
    one = case.delegation
    if step.verdicts is not None:
        case.update(verdicts=step.verdicts)
    is_news = one.state != "queued" if step.behind is None else one.blocked_by != step.behind
    if is_news:
        case.tell(one, "queued", outcome=step.outcome, **step.numbers)
    enter(case, "queued", blocked_by=step.behind, waiting=step.waiting)
    if step.behind is None:
        look_at = one.deadline_at
    else:
        look_at = None if step.waiting is None else step.waiting.until_at
    limit_at = None if one.standby is None else one.standby.limit_at
    if limit_at is not None and limit_at > case.now:
        look_at = limit_at if look_at is None else min(look_at, limit_at)
    if look_at is not None:
        case.effects.append(wake_at(case, look_at))


def _hand_back(case: Case, step: HandBack, *, event: str) -> None:
    """The session stays where it is."""
    if step.verdicts is not None:
        case.update(verdicts=step.verdicts)
    one = case.delegation
    hop = hop_to(case, step.choice)
    if hop is not None:
        case.update(hops=(*one.hops, hop))
        note_hop(case, hop)
    hint = HandedBack(model=step.choice.model, effort=step.choice.entry.effort)
    case.tell(
        one,
        event,
        outcome="hands the work back to the caller",
        verdicts=one.verdicts,
        model=hint.model,
        effort=hint.effort,
    )
    last = one.attempts[-1].failure if one.attempts else None
    end = ended("handed_back", "the caller does it", failure=last, handed_back=hint)
    _end(case, end, event=event)


def _end(case: Case, step: End, *, event: str) -> None:
    if step.withdraws:
        withdraw_marks(case)
    if step.verdicts is not None:
        case.update(verdicts=step.verdicts)
    note_outage(case, step.out)
    if step.why:
        case.tell(
            case.delegation,
            event,
            outcome=step.why,
            verdicts=step.verdicts or (),
            **step.numbers,
        )
    if below(case, case.delegation):
        enter(case, "waiting", outcome=step.outcome)
    else:
        _close(case, step.outcome)


def _close(case: Case, outcome: Ending) -> None:
    """Give the delegation its one answer and its session back."""
    one, state = case.delegation, outcome.state
    is_success = state == "succeeded"
    message, warnings = outcome.message, one.warnings
    if is_success:
        warnings = (*warnings, *one.unstopped)
    elif one.unstopped:
        message = "; ".join(part for part in (message, *one.unstopped) if part)
    leave_standby(case, ended=state)
    enter(
        case,
        state,
        served_by=one.attempts[-1].backend if is_success else None,
        tier_served=_tier_served(one, state),
        handed_back=outcome.handed_back,
        questions=closed(one.questions, now=case.now),
        forced=None,
        rests_until_at=None,
        failure=None if is_success else outcome.failure,
        message=message,
        warnings=warnings,
        retry_at=outcome.retry_at,
        ended_at=case.now,
        waiting=None,
        phase=None,
        outcome=None,
    )
    one = case.delegation
    tell_parent(case, one)
    if state in ("succeeded", "handed_back") and one.turn.creative:
        case.move(author_family=author_of(case, one))
    if case.session.running == one.delegation:
        case.move(running=None, last_used_at=case.now)
    kind, backend, fields = last_event(one)
    case.note(kind, one, backend=backend, **fields)
    case.tell(one, "ended", outcome=state + (f": {message}" if message else ""))
    case.effects.append(Answer(delegation=one.delegation))
    case.wake_waiting()


def _tier_served(one: Delegation, state: DelegationState) -> str | None:
    if state == "handed_back":
        return "in_session"
    return one.attempts[-1].tier if state == "succeeded" else None
