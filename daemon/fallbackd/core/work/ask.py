"""
Where the walk of a delegation ends and a person decides: the question, or what the role says
instead of one.
"""

from collections.abc import Mapping

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import AskPerson, GoOn, WakeAt
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.policy import Entry
from fallbackd.core.questions import Question, QuestionKind, closed, options_with, question_id
from fallbackd.core.records import Attempt, Delegation, Session, Waiting
from fallbackd.core.routing.families import UNKNOWN
from fallbackd.core.routing.resolve import Request
from fallbackd.core.work.ends import earliest_return, end
from fallbackd.core.work.offers import usable_for, with_rules
from fallbackd.core.work.outages import Out, guard
from fallbackd.core.work.resolution import forbidden_by, request_of
from fallbackd.core.work.workspaces import blocker

REST_S = 300.0
"""How long is waited for what nobody can time."""
MIN_REST_S = 10.0


def rests(case: Case, delegation: Delegation, session: Session) -> bool:
    """Whether a person chose to wait, and the time is not over: then nothing is asked again."""
    until_at = delegation.rests_until_at
    if until_at is None or case.now >= until_at:
        return False
    since_at = case.now if delegation.waiting is None else delegation.waiting.since_at
    limit_at = until_at + case.policy.wait_threshold_s(delegation.mode)
    waiting = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    case.keep_delegation(structs.replace(delegation, state="waiting", waiting=waiting))
    case.keep_session(session)
    case.effects.append(
        WakeAt(at=until_at, delegation=delegation.delegation, purpose="wait"),
    )
    return True


def at_outage(
    case: Case,
    delegation: Delegation,
    session: Session,
    candidates: tuple[Entry, ...],
    out: Out,
    *,
    event: str,
) -> None:
    """A service is out, and the role does not go elsewhere in silence: what it does instead."""
    if rests(case, delegation, session):
        return
    _tell_outage(case, delegation, out)
    if delegation.on_outage != "ask":
        is_skip = delegation.on_outage == "skip"
        case.tell(
            delegation,
            event,
            outcome=f"{out.text}; the role says {delegation.on_outage}",
            verdicts=delegation.verdicts,
            on_outage=delegation.on_outage,
        )
        end(
            case,
            delegation,
            session,
            state="refused",
            failure=failure_of(
                case, delegation, out, detail="skipped" if is_skip else "outage_stop"
            ),
            message=f"{out.text}; "
            + ("this piece is skipped" if is_skip else "no other backend takes over")
            + f' (on_outage = "{delegation.on_outage}")',
            retry_at=return_at(case, delegation, out),
        )
        return
    usable = usable_for(case, delegation, session, candidates)
    ask(
        case,
        delegation,
        session,
        kind="outage",
        text=f"{out.text}. Who does this piece of work{_for_role(delegation)}?",
        usable=usable,
        wait=f"wait until {out.verdict.backend} is back",
        event=event,
    )


def _for_role(delegation: Delegation) -> str:
    return "" if delegation.role is None else f" of the role {delegation.role}"


def _tell_outage(case: Case, delegation: Delegation, out: Out) -> None:
    case.note(
        "session.notice",
        delegation,
        backend=out.verdict.backend,
        notice="outage",
        route=(delegation.requested, out.verdict.backend),
        from_model=None,
        to_model=out.verdict.model,
        reason=out.verdict.reason,
        text=out.text,
    )


def failure_of(case: Case, delegation: Delegation, out: Out, *, detail: str) -> Failure:
    """What the work is refused with: the failure of the service, told apart by its detail."""
    last = delegation.attempts[-1].failure if delegation.attempts else None
    if last is not None:
        return structs.replace(last, detail=detail)
    known = {one.value: one for one in Reason}
    made = make_failure(
        known.get(out.verdict.reason or "", Reason.UNKNOWN),
        now=case.now,
        detail=detail,
        signature=f"fallbackd/{detail}",
        evidence=out.text,
    )
    return structs.replace(made, marks_health=False, retryable=False, hop=False)


def return_at(case: Case, delegation: Delegation, out: Out | None = None) -> float | None:
    """When it is worth trying again, where that is known."""
    times = [earliest_return(case, delegation), None if out is None else out.trial_at]
    known = [at for at in times if at is not None and at > case.now]
    return max(known, default=None) if out is not None else min(known, default=None)


def forbidden_all(
    case: Case,
    delegation: Delegation,
    session: Session,
    candidates: tuple[Entry, ...],
    request: Request,
    *,
    event: str,
) -> bool:
    """
    Ask where somebody is usable whom only a rule of the role or of the request forbids.

    Returns:
        False: nobody is; the walk ends as it would without such a rule.
    """
    limits = request.limits
    kind = forbidden_by(case, candidates, request)
    if kind is None:
        return False
    if rests(case, delegation, session):
        return True
    usable = usable_for(case, delegation, session, candidates)
    if kind == "consent":
        _about_money(case, delegation, session, usable, event=event)
        return True
    text = "Everybody who could do it now is of a family that must not"
    wait: str | None = "wait until somebody else is back"
    if UNKNOWN in limits.differs_from:
        text = "Nobody knows of which family the author is, so nobody certainly differs from it"
        wait = None
    ask(
        case,
        delegation,
        session,
        kind=kind,
        text=f"{text}. Who does this piece of work{_for_role(delegation)}?",
        usable=usable,
        wait=wait,
        event=event,
    )
    return True


def _about_money(
    case: Case,
    delegation: Delegation,
    session: Session,
    usable: Mapping[str, str],
    *,
    event: str,
) -> None:
    text = f"only what bills by use is left ({', '.join(usable)})"
    if delegation.mode == "interactive":
        ask(
            case,
            delegation,
            session,
            kind="consent",
            text=f"Of those who could do it now, {text}. May it cost money?",
            usable=usable,
            wait=f"wait until {delegation.requested} is back",
            event=event,
        )
        return
    case.tell(delegation, event, outcome=text, verdicts=delegation.verdicts, allow_metered=False)
    end(
        case,
        delegation,
        session,
        state="refused",
        failure=delegation.attempts[-1].failure if delegation.attempts else None,
        message=f"{text}, and nobody has agreed to that: send allow_metered, or set "
        "allow_metered = true in the role",
        retry_at=return_at(case, delegation),
    )


def ask_about_part(case: Case, delegation: Delegation, session: Session, attempt: Attempt) -> None:
    """An attempt failed after it had begun to change files."""
    done = "may have changed files" if attempt.effects == "possible" else "has changed files"
    ended = "" if attempt.failure is None else f" ({attempt.failure.reason.value})"
    request = request_of(case, delegation, session)
    found = case.resolve(delegation.candidates, request)
    delegation = structs.replace(delegation, verdicts=found.verdicts)
    ask(
        case,
        delegation,
        session,
        kind="partial",
        text=f"{attempt.backend} {done} and then failed{ended}. Who goes on from there?",
        usable=usable_for(case, delegation, session, delegation.candidates),
        wait=None,
        event="attempt failed",
    )


def ask(
    case: Case,
    delegation: Delegation,
    session: Session,
    *,
    kind: QuestionKind,
    text: str,
    usable: Mapping[str, str],
    wait: str | None,
    event: str,
) -> None:
    """
    Open a question. Nothing is started before a person has answered it.

    Args:
        usable: Whom a person could choose, each with the rules that speak against it, or "".
    """
    text = with_rules(text, usable)
    deadlines = [] if delegation.deadline_at is None else [delegation.deadline_at]
    if delegation.question_timeout_s is not None:
        deadlines.append(case.now + delegation.question_timeout_s)
    question = Question(
        question=question_id(delegation.delegation, len(delegation.questions) + 1),
        delegation=delegation.delegation,
        session=delegation.session,
        role=delegation.role,
        kind=kind,
        text=text,
        options=options_with(usable, wait=wait),
        opened_at=case.now,
        deadline_at=min(deadlines, default=None),
    )
    asking = structs.replace(
        delegation,
        state="awaiting_answer",
        questions=(*delegation.questions, question),
        waiting=None,
        forced=None,
        rests_until_at=None,
        phase=None,
        retry_at=return_at(case, delegation),
    )
    case.keep_delegation(asking)
    case.keep_session(session)
    case.wake_waiting()  # others may work in its directory meanwhile
    case.note(
        "question.opened",
        asking,
        question=question.question,
        question_kind=kind,
        role=question.role,
        text=text,
        choices=[one.choice for one in question.options],
        deadline_at=question.deadline_at,
    )
    case.tell(
        asking,
        event,
        outcome=f"asks {question.question}: {text}",
        verdicts=asking.verdicts,
        on_outage=asking.on_outage,
        choices=[one.choice for one in question.options],
    )
    case.effects.append(AskPerson(delegation=asking.delegation))
    if question.deadline_at is not None:
        case.effects.append(
            WakeAt(at=question.deadline_at, delegation=asking.delegation, purpose="wait")
        )


def after_recovery(case: Case, delegation: Delegation, session: Session) -> Delegation | None:
    """
    The delegation without its question about an outage, where the service has answered other work
    since. None: the question stays open. The end of a window proves nothing: it closes none.
    """
    question = delegation.question
    if question is None or question.kind != "outage" or blocker(case, delegation) is not None:
        return None
    candidates = delegation.candidates if delegation.failover else delegation.candidates[:1]
    request = request_of(case, delegation, session)
    resolved = case.resolve(candidates, request)
    resolved, out = guard(case, delegation, candidates, request, resolved)
    choice = resolved.choice
    if out is not None or choice is None or choice.trial_scopes:
        return None
    text = f"{question.question} is closed: {choice.backend.id} can be used now"
    delegation = structs.replace(
        delegation,
        state="waiting",
        questions=closed(delegation.questions, now=case.now),
        rests_until_at=None,
    )
    case.note(
        "question.answered",
        delegation,
        question=question.question,
        choice=None,
        note=None,
        answered_by=None,
        text=text,
    )
    case.tell(delegation, "service recovered", outcome=text, verdicts=resolved.verdicts)
    case.keep_delegation(delegation)
    case.effects.append(GoOn(delegation=delegation.delegation))
    return delegation


def keep_asking(case: Case, delegation: Delegation, session: Session, question: Question) -> None:
    """Only a person moves a delegation with an open question, or the end of its time."""
    if question.deadline_at is not None and case.now >= question.deadline_at:
        end(
            case,
            delegation,
            session,
            state="refused",
            failure=delegation.attempts[-1].failure if delegation.attempts else None,
            message=f"nobody has answered {question.question} in time: {question.text}",
            retry_at=return_at(case, delegation),
        )
        return
    case.keep_delegation(delegation)
    if question.deadline_at is not None:
        case.effects.append(
            WakeAt(at=question.deadline_at, delegation=delegation.delegation, purpose="wait")
        )
