"""
The next step of a delegation that has no attempt under way and is not ended.

`plan` reads and changes nothing: it takes the first rule that says something, in the order in which
they stand here. A hop is a move after a started attempt and counts; a candidate that is skipped
costs nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from fallbackd.core.case import CaseView
from fallbackd.core.ids import DelegationId
from fallbackd.core.policy import IN_SESSION_KIND
from fallbackd.core.records import Delegation, Waiting, standby_order
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.work import standby
from fallbackd.core.work.ask import (
    at_outage,
    by_rules,
    is_recovered,
    resolved_by_person,
    resting,
    unanswered,
)
from fallbackd.core.work.outages import Search, search
from fallbackd.core.work.resolution import halted, request_of, rotated, with_verdict
from fallbackd.core.work.retries import budget_of, held_until, is_overtaken, shown
from fallbackd.core.work.steps import (
    BY_CALLER,
    Clear,
    End,
    HandBack,
    Hold,
    Queue,
    Start,
    Step,
    Verdicts,
    Wait,
    deadline_passed,
    ended,
    exhausted,
)
from fallbackd.core.work.stopping import below
from fallbackd.core.work.workspaces import blocker, is_hidden, why_blocked, why_hidden

# A free place on this host goes to the first delegation of the client that has least.
#
# A client is a user and a session of processes. One that delegates a hundred prompts at once gets
# every place while it is alone, and every second one as soon as another client asks.


NESTED_PLACES = 2
"""
Work from inside of an attempt may run beyond the maximum, up to this many times of it: its parent
holds a place and waits for it, and a host full of waiting parents would wait for ever.
"""

Active = Mapping[DelegationId, Delegation]


def free_places(active: Active, max_running: int) -> int:
    return max_running - sum(1 for one in active.values() if one.running is not None)


def turns(active: Active) -> list[DelegationId]:
    """Return the delegations that wait for a place, in the order in which they get one."""
    return _in_turn(active, (one for one in active.values() if _waits_for_place(one)))


def has_place(active: Active, one: Delegation, max_running: int) -> bool:
    """Return whether a delegation may start an attempt now, and is not before its turn."""
    if len(active) < max_running:
        return True
    others = {name: other for name, other in active.items() if name != one.delegation}
    free = free_places(others, max_running)
    if one.parent is not None:
        return free > max_running - NESTED_PLACES * max_running
    if free <= 0:
        return False
    before = active.get(one.delegation)
    if before is not None and before.running is not None:
        return True  # it keeps its place for the next attempt
    queued = [other for other in others.values() if _waits_for_place(other)]
    return not queued or one.delegation in _in_turn(others, [*queued, one])[:free]


def _waits_for_place(one: Delegation) -> bool:
    return one.state == "queued" and one.running is None and one.blocked_by is None


def _in_turn(active: Active, waiting: Iterable[Delegation]) -> list[DelegationId]:
    has = Counter(one.client for one in active.values() if one.running is not None)
    ranked = []
    for one in sorted(waiting, key=standby_order):
        rank = -1 if one.parent is not None else has[one.client]
        has[one.client] += 1
        ranked.append((rank, standby_order(one), one.delegation))
    return [delegation for _, _, delegation in sorted(ranked)]


def plan(case: CaseView) -> Step | Clear:
    for rule in RULES:
        if (step := rule(case)) is not None:
            return step
    found = searched(case)
    for of_chain in RULES_OF_CHAIN:
        if (step := of_chain(case, found)) is not None:
            return step
    return given_up(case, "no backend in the chain is available")


def given_up(case: CaseView, why: str) -> Step:
    """The end of work that may not wait until a backend is available."""
    return standby.when_available(case) or exhausted(case, why)


# --- what comes before any candidate ---------------------------------------------------------


def nested_first(case: CaseView) -> Step | None:
    """Nothing follows an attempt before what was delegated from inside it is gone."""
    if not below(case, case.delegation):
        return None
    # A question that is open meanwhile stays open: that is its state.
    return Hold(is_nested=case.delegation.question is None)


def pending_end(case: CaseView) -> Step | None:
    outcome = case.delegation.outcome
    return None if outcome is None else End(outcome=outcome)


def cancelled(case: CaseView) -> Step | None:
    if not case.delegation.cancelling:
        return None
    return ended("cancelled", case.delegation.message or BY_CALLER)


def unproven(case: CaseView) -> Step | None:
    """Two agents in one tree are worse than no answer."""
    one = case.delegation
    if not one.unstopped:
        return None
    last = one.attempts[-1].failure if one.attempts else None
    return ended("failed", "nothing is started beside what may still run", failure=last)


def past_deadline(case: CaseView) -> Step | None:
    deadline_at = case.delegation.deadline_at
    if deadline_at is None or case.now < deadline_at:
        return None
    return deadline_passed(now=case.now)


def in_line(case: CaseView) -> Step | Clear | None:
    """Another delegation has its session or its directory."""
    one = case.delegation
    if one.blocked_by is None:
        return None
    by = blocker(case, one)
    if by is None and is_hidden(case.snapshot.session, one.above):
        return ended("refused", why_hidden(one.above[0], one.session))
    if by is None:
        return Clear(what="line")
    if one.waiting is not None and case.now >= one.waiting.limit_at:
        return ended("refused", why_blocked(one, by))
    return behind(case, by)


def behind(case: CaseView, by: Delegation) -> Queue:
    """
    Queue behind another delegation, whose end wakes this one. Work from inside an attempt waits
    for a bounded time only: `by` may itself wait for the attempt that it comes from.
    """
    one = case.delegation
    waiting = one.waiting
    if waiting is None and one.parent is not None:
        limit_at = case.now + case.policy.wait_threshold_s(one.mode)
        waiting = Waiting(since_at=case.now, until_at=limit_at, limit_at=limit_at)
    return Queue(behind=by.delegation, outcome=f"waits: {why_blocked(one, by)}", waiting=waiting)


def open_question(case: CaseView) -> Step | Clear | None:
    """Only a person moves it, or the end of its time, or the recovery of its service."""
    question = case.delegation.question
    if question is None:
        return None
    if (clear := is_recovered(case, question)) is not None:
        return clear
    if question.deadline_at is not None and case.now >= question.deadline_at:
        return unanswered(case, question)
    return Hold(until_at=question.deadline_at)


def started_by_person(case: CaseView) -> Step | None:
    """A person starts what is on standby, whatever is known of its backends."""
    resolved = standby.chosen_now(case)
    if resolved is None or resolved.choice is None:
        return None
    if is_full(case):
        return for_place(case, verdicts=resolved.verdicts)
    return Start(choice=resolved.choice, event="started by a person", verdicts=resolved.verdicts)


def forced_by_person(case: CaseView) -> Step | Clear | None:
    forced = case.delegation.forced
    if forced is None:
        return None
    if is_full(case):
        return for_place(case)
    resolved = resolved_by_person(case, forced)
    if resolved.choice is not None:
        return Start(
            choice=resolved.choice, event="chosen by a person", numbers=retry_numbers(case)
        )
    return Clear(
        what="forced",
        outcome=f"{forced} cannot be used any more",
        verdicts=resolved.verdicts,
    )


def due_retry(case: CaseView) -> Step | Clear | None:
    """The candidate that failed last is waited for, and tried again then."""
    waiting = case.delegation.waiting
    if waiting is None or waiting.retry is None:
        return None
    if is_overtaken(case, waiting):
        return Clear(what="retry")
    if case.now < waiting.until_at:
        return Hold(until_at=waiting.until_at)
    if is_full(case):
        return for_place(case, waiting=waiting)
    request = Request(
        prompt_tokens=case.delegation.turn.prompt_tokens, credential=waiting.credential
    )
    choice = case.resolve((waiting.retry,), request).choice
    if choice is None:
        return None
    return Start(
        choice=choice,
        event="waited",
        retry_of=None if waiting.resumes else waiting.retry_of,
        resumes=waiting.retry_of if waiting.resumes else None,
        has_waited=waiting.is_stated,
        numbers=retry_numbers(case),
    )


# --- after an attempt ------------------------------------------------------------------------


def other_credential(case: CaseView) -> Step | None:
    if not case.turn.tried:
        return None
    found = rotated(case, case.turn)
    if found is None or found.choice is None:
        return None
    verdicts = with_verdict(case.delegation.verdicts, found.verdicts[0])
    if is_full(case):
        return for_place(case, verdicts=verdicts)
    return move(case, Start(choice=found.choice, verdicts=verdicts, rotates=True))


def no_failover(case: CaseView) -> Step | None:
    if case.delegation.failover or not case.turn.tried:
        return None
    return given_up(case, "the caller wants no failover")


def out_of_budget(case: CaseView) -> Step | None:
    if not case.turn.tried:
        return None
    _, halt = halted(case.policy, case.turn)
    return None if halt is None else given_up(case, halt.why)


# --- the chain -------------------------------------------------------------------------------


def searched(case: CaseView) -> Search:
    turn = case.turn
    candidates = turn.candidates
    if turn.tried:
        candidates, _ = halted(case.policy, turn)
    return search(
        case,
        turn,
        candidates,
        request_of(case),
        may_doubt=lambda resolved: (
            not may_wait(case, resolved)
            if case.delegation.standby is None
            else standby.may_doubt(case)
        ),
    )


def service_out(case: CaseView, found: Search) -> Step | None:
    """A service is out, and the role does not go elsewhere by itself."""
    out = found.out
    if out is None:
        return None
    if out.in_trial or not out.is_first:
        step = worth_waiting(case, found)
        if step is not None:
            return step
    verdicts = found.resolved.verdicts
    trial_at = out.verdict.until_at if out.trial_at is None else out.trial_at
    later = resting(case, verdicts) or standby.when_available(
        case, trial_at=trial_at, last=out.verdict.backend
    )
    return later or at_outage(case, out, found.candidates, verdicts=verdicts)


def best_candidate(case: CaseView, found: Search) -> Step | None:
    choice, verdicts = found.resolved.choice, found.resolved.verdicts
    if choice is None:
        return None
    if choice.backend.kind == IN_SESSION_KIND:
        return HandBack(choice=choice, verdicts=verdicts)
    if is_full(case):
        return for_place(case, verdicts=verdicts)
    start = Start(choice=choice, verdicts=verdicts)
    return move(case, start) if case.turn.tried else start


def worth_waiting(case: CaseView, found: Search) -> Step | None:
    """A candidate is under trial, or returns at a time that its provider stated."""
    one, resolved = case.delegation, found.resolved
    if one.standby is not None:
        return standby.when_available(case)
    if not may_wait(case, resolved):
        return None
    limit_at = until_at = wait_limit_at(case)
    if resolved.stated_at is not None and resolved.stated_at <= limit_at:
        until_at = resolved.stated_at
    since_at = case.now if one.waiting is None else one.waiting.since_at
    return Wait(
        waiting=Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at),
        outcome="waits for a trial" if resolved.in_trial else "waits for a stated time",
        verdicts=resolved.verdicts,
        numbers={
            "until_at": until_at,
            "wait_threshold_s": case.policy.wait_threshold_s(one.mode),
        },
    )


def forbidden(case: CaseView, found: Search) -> Step | None:
    """A candidate is usable, and only a rule of the role or of the request forbids it."""
    return by_rules(case, found.candidates, found.request, verdicts=found.resolved.verdicts)


def rest_of_wait(case: CaseView, found: Search) -> Step | None:
    """A person chose to wait, and the time is not over."""
    return resting(case, found.resolved.verdicts)


RULES: tuple[Callable[[CaseView], Step | Clear | None], ...] = (
    nested_first,
    pending_end,
    cancelled,
    unproven,
    past_deadline,
    standby.past_limit,
    in_line,
    open_question,
    standby.not_yet,
    started_by_person,
    forced_by_person,
    due_retry,
    other_credential,
    no_failover,
    out_of_budget,
)
RULES_OF_CHAIN: tuple[Callable[[CaseView, Search], Step | None], ...] = (
    service_out,
    best_candidate,
    worth_waiting,
    forbidden,
    rest_of_wait,
)


# --- pieces of rules -------------------------------------------------------------------------


def is_full(case: CaseView) -> bool:
    """Return whether the host runs as many attempts as it may, or others come first."""
    max_running = case.policy.defaults.max_running
    return not has_place(case.snapshot.active, case.delegation, max_running)


def for_place(
    case: CaseView, *, waiting: Waiting | None = None, verdicts: Verdicts | None = None
) -> Queue:
    """Wait for a free place: the next end of an attempt wakes this delegation."""
    return Queue(
        outcome="waits for a free place",
        waiting=waiting,
        verdicts=verdicts,
        numbers={"max_running": case.policy.defaults.max_running},
    )


def retry_numbers(case: CaseView) -> dict[str, Any]:  # for the story
    """The budget of this host for attempts beyond the first, as such a start finds it."""
    return {"retry_budget": shown(budget_of(case))} if case.delegation.attempts else {}


def move(case: CaseView, start: Start) -> Step:
    """A start away from the last attempt. It may have to wait for what others find there."""
    one, budget = case.delegation, budget_of(case)
    numbers = {"retry_budget": shown(budget)}
    until_at = held_until(case, budget, one, start.choice)
    if until_at is None:
        return structs.replace(start, numbers=numbers)
    before = one.waiting
    since_at = case.now if before is None or before.retry is not None else before.since_at
    limit_at = since_at + case.policy.wait_threshold_s(one.mode)
    if case.now >= limit_at:
        return given_up(case, "the retry budget of this host is used up")
    until_at = min(until_at, limit_at)
    waits = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    if waits == before and one.state == "waiting":
        return Hold(until_at=until_at)  # many wait at once, and each is woken for each end
    return Wait(
        waiting=waits,
        outcome=f"waits for the outcome of a probe of {start.choice.backend.id}",
        verdicts=start.verdicts,
        numbers=numbers,
    )


def wait_limit_at(case: CaseView) -> float:
    one = case.delegation
    limit_at = case.now + case.policy.wait_threshold_s(one.mode)
    if one.waiting is not None:
        limit_at = one.waiting.limit_at
    return limit_at if one.deadline_at is None else min(limit_at, one.deadline_at)


def may_wait(case: CaseView, resolved: Resolved) -> bool:
    limit_at = wait_limit_at(case)
    if case.now >= limit_at:
        return False
    return resolved.in_trial or (resolved.stated_at is not None and resolved.stated_at <= limit_at)
