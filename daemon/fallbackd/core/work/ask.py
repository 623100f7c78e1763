"""
Decisions left to a person: the question with its choices, or what the role says instead.

These are pieces of `plan`: they read the case, and give a step.

Questions live in the record of their delegation. A delegation that waits for a person holds its
session, and its directory only once it has begun there: until then others may work in it.
"""

from collections.abc import Mapping

from msgspec import structs

from fallbackd.core.case import CaseView
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation, Ending, Question, Waiting
from fallbackd.core.routing.candidates import UNKNOWN, Choice, Limits, differs, family_of, find_role
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.outages import Out, search, service_of
from fallbackd.core.work.resolution import forbidden_by, request_of
from fallbackd.core.work.steps import (
    Ask,
    Clear,
    End,
    Step,
    Verdicts,
    Wait,
    earliest_return,
    ended,
    reported_failure,
)
from fallbackd.core.work.workspaces import blocker

# Candidates that a person could choose now, and the rules that speak against each.


USABLE = frozenset({"chosen", "healthy", "unproven", "affinity", "cooldown"})


def usable_for(case: CaseView, candidates: tuple[Entry, ...]) -> dict[str, str]:
    """
    Backends that a person could choose now, in the order of the chain.

    Returns:
        For each what a person has to know of it before: "of the author's family gpt, metered".
        Empty where no rule speaks against it.
    """
    request = request_of(case)
    limits = Limits(spent_tiers=request.limits.spent_tiers)
    found = case.resolve(candidates, structs.replace(request, limits=limits))
    names: dict[str, str] = {}
    for verdict in found.verdicts:
        backend = find_backend(case.policy, verdict.backend)
        if verdict.verdict not in USABLE or backend is None or backend.kind == IN_SESSION_KIND:
            continue
        if backend.id not in names and not service_of(case, verdict)[0]:
            choice = resolved_by_person(case, backend.id).choice
            names[backend.id] = "" if choice is None else _against(case, choice)
    return names


def resolved_by_person(case: CaseView, name: BackendId) -> Resolved:
    """Return the candidate that a person chose: no rule of the role holds for it."""
    delegation = case.delegation
    entries = tuple(one for one in delegation.turn.candidates if one.backend == name)
    return case.resolve(entries, Request(prompt_tokens=delegation.turn.prompt_tokens))


def _against(case: CaseView, choice: Choice) -> str:
    delegation = case.delegation
    said = []
    family = family_of(choice.backend, choice.model)
    if not differs(family, frozenset(delegation.turn.differs_from)):
        said.append(_of_family(case, delegation, family))
    if choice.backend.cost == "metered" and not delegation.turn.allow_metered:
        said.append("metered")
    return ", ".join(said)


def _of_family(case: CaseView, delegation: Delegation, family: str | None) -> str:
    role = None if delegation.role is None else find_role(case.policy, delegation.role)
    if family is None:
        return "of an unknown model family, perhaps that of the author"
    if role is not None and family in role.must_differ_from:
        return f"of the family {family}, which this role rules out"
    if family in delegation.turn.differs_from:
        return f"of the author's family {family}"
    assert UNKNOWN in delegation.turn.differs_from
    return f"of the family {family}, perhaps that of the author"


def with_rules(text: str, usable: Mapping[str, str]) -> str:
    """The question, with the candidates that the rules exclude."""
    against = [f"{name} is {why}" for name, why in usable.items() if why]
    return f"{text} By the rules they may not: {'; '.join(against)}." if against else text


REST_S = 300.0
"""Time to wait where no time is known."""
MIN_REST_S = 10.0


def resting(case: CaseView, verdicts: Verdicts) -> Wait | None:
    """A person chose to wait, and the time is not over: then nothing is asked again."""
    one = case.delegation
    until_at = one.rests_until_at
    if until_at is None or case.now >= until_at:
        return None
    since_at = case.now if one.waiting is None else one.waiting.since_at
    limit_at = until_at + case.policy.wait_threshold_s(one.mode)
    waiting = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    return Wait(waiting=waiting, verdicts=verdicts)


def at_outage(
    case: CaseView, out: Out, candidates: tuple[Entry, ...], *, verdicts: Verdicts
) -> Step:
    """A service is out, and the role does not go elsewhere in silence: what it does instead."""
    one = case.delegation
    if one.turn.on_outage == "ask":
        return Ask(
            kind="outage",
            text=f"{out.text}. Who does this piece of work{_for_role(one)}?",
            usable=usable_for(case, candidates),
            wait=f"wait until {out.verdict.backend} is back",
            verdicts=verdicts,
            out=out,
        )
    is_skip = one.turn.on_outage == "skip"
    outcome = Ending(
        state="refused",
        failure=_failure_of(case, out, detail="skipped" if is_skip else "outage_stop"),
        message=f"{out.text}; "
        + ("this piece is skipped" if is_skip else "no other backend takes over")
        + f' (on_outage = "{one.turn.on_outage}")',
        retry_at=return_at(verdicts, out, now=case.now),
    )
    return End(
        outcome=outcome,
        why=f"{out.text}; the role says {one.turn.on_outage}",
        verdicts=verdicts,
        out=out,
        numbers={"on_outage": one.turn.on_outage},
    )


def _for_role(delegation: Delegation) -> str:
    return "" if delegation.role is None else f" of the role {delegation.role}"


def _failure_of(case: CaseView, out: Out, *, detail: str) -> Failure:
    """
    Return the failure that the work is refused with: the failure of the service, with a detail of
    its own.
    """
    attempts = case.delegation.attempts
    last = attempts[-1].failure if attempts else None
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


def return_at(verdicts: Verdicts, out: Out | None = None, *, now: float) -> float | None:
    """Return when it is worth trying again, where that is known."""
    times = [earliest_return(verdicts), None if out is None else out.trial_at]
    known = [at for at in times if at is not None and at > now]
    return max(known, default=None) if out is not None else min(known, default=None)


def by_rules(
    case: CaseView, candidates: tuple[Entry, ...], request: Request, *, verdicts: Verdicts
) -> Step | None:
    """
    Ask where a candidate is usable that only a rule of the role or of the request forbids. None:
    there is none, and the delegation continues as it would without such a rule.
    """
    kind = forbidden_by(case, candidates, request)
    if kind is None:
        return None
    if (step := resting(case, verdicts)) is not None:
        return step
    usable = usable_for(case, candidates)
    if kind == "consent":
        return _about_money(case, usable, verdicts=verdicts)
    text = "Every available backend belongs to an excluded model family"
    wait: str | None = "wait until another backend is available"
    if UNKNOWN in request.limits.differs_from:
        text = "The author's model family is unknown, so no backend certainly differs from it"
        wait = None
    return Ask(
        kind=kind,
        text=f"{text}. Which backend does this piece of work{_for_role(case.delegation)}?",
        usable=usable,
        wait=wait,
        verdicts=verdicts,
    )


def _about_money(case: CaseView, usable: Mapping[str, str], *, verdicts: Verdicts) -> Step:
    one = case.delegation
    text = f"only backends that are billed by use are left ({', '.join(usable)})"
    if one.mode == "interactive":
        return Ask(
            kind="consent",
            text=f"Of the available backends {text}. May it cost money?",
            usable=usable,
            wait=f"wait until {one.requested} is back",
            verdicts=verdicts,
        )
    outcome = Ending(
        state="refused",
        failure=reported_failure(case, verdicts),
        message=f"{text}, and this request has no consent: send allow_metered, or set "
        "allow_metered = true in the role",
        retry_at=return_at(verdicts, now=case.now),
    )
    return End(outcome=outcome, why=text, verdicts=verdicts, numbers={"allow_metered": False})


def about_part(case: CaseView, attempt: Attempt) -> Ask:
    """An attempt failed after it had begun to work."""
    failed = "" if attempt.failure is None else f" ({attempt.failure.reason.value})"
    candidates = case.delegation.turn.candidates
    found = case.resolve(candidates, request_of(case))
    done = f"{attempt.backend} {done_by(attempt)}"
    return Ask(
        kind="partial",
        text=f"{done} and then failed{failed}. Which backend continues?",
        usable=usable_for(case, candidates),
        verdicts=found.verdicts,
    )


def done_by(attempt: Attempt) -> str:
    """Return what an attempt has done beside talking, in words that follow its name."""
    if attempt.outside:
        what = ", ".join(
            f"{one}, which may or may not be done" if one in attempt.unfinished else one
            for one in attempt.outside
        )
        return f"has done what cannot be taken back ({what})"
    return "may have changed files" if attempt.effects == "possible" else "has changed files"


def is_recovered(case: CaseView, question: Question) -> Clear | None:
    """
    The end of a question about an outage, where the service has answered other work since. The end
    of a window proves nothing: it closes none.
    """
    one = case.delegation
    if question.kind != "outage" or blocker(case, one) is not None:
        return None
    turn = case.turn
    found = search(case, turn, turn.candidates, request_of(case))
    choice = found.resolved.choice
    if found.out is not None or choice is None or choice.trial_scopes:
        return None
    return Clear(
        what="question",
        outcome=f"{question.question} is closed: {choice.backend.id} can be used now",
        verdicts=found.resolved.verdicts,
    )


def unanswered(case: CaseView, question: Question) -> End:
    """The time of an open question is over."""
    one = case.delegation
    return ended(
        "refused",
        f"{question.question} was not answered in time: {question.text}",
        failure=reported_failure(case, one.verdicts),
        retry_at=return_at(one.verdicts, now=case.now),
    )
