"""
Work that its caller lets wait until a backend is available, for hours if need be.

    accepted ──▶ no backend is usable now, or its time has not come ──▶ on standby
       ▲                                                                    │
       └── another failure that passes by itself ── attempt ◀── by priority and age

On standby it has neither a place on the host nor, unless it has begun there, its directory. What
failed before for a reason that passes counts neither as an attempt nor as a hop. It is woken when
its time comes, and by each change elsewhere: the leased trial of a scope comes first, and its
answer lets the others go.
"""

from collections.abc import Iterable

from msgspec import structs

from fallbackd.core.case import Case, CaseView, turn_of
from fallbackd.core.decision import Decision, Rejection, WakeWaiting
from fallbackd.core.events import StandbyAsked
from fallbackd.core.health import RARE_TRIALS_S, early_trial_at, view
from fallbackd.core.ids import BackendId
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Standby, Verdict, Waiting, standby_order
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.scopes import find_backend, scopes_of
from fallbackd.core.work.resolution import request_after, request_of
from fallbackd.core.work.steps import End, Hold, Step, Verdicts, Wait, exhausted
from fallbackd.core.work.workspaces import writer_beside

DEFAULT_S = 86_400.0
"""Longest wait of work that names no end."""
LONGEST_S = 30 * 86_400.0
PAUSE_S, LONGEST_PAUSE_S = 60.0, 1800.0
"""Pause after failures that have marked nothing, as those of this machine's network: it doubles."""
_PASSES = frozenset({"rate_limited", "broken", "in_trial", "cooldown", "paused", "budget"})
"""Verdicts that change by time or by a repair; not that of a program that is not set up."""


# --- what the caller asks for ------------------------------------------------------------------


def terms(
    *,
    when_available: bool = False,
    wait_for_s: float | None = None,
    wait_until_at: float | None = None,
    not_before_at: float | None = None,
    not_before_s: float | None = None,
    priority: int = 0,
    now: float,
) -> Standby | None:
    """
    Returns:
        The terms of work that may wait; None: it may not.

    Raises:
        ValueError: They contradict each other or the clock. Says what to do.
    """
    given = (wait_for_s, wait_until_at, not_before_at, not_before_s)
    if not when_available and all(one is None for one in given):
        if priority:
            raise ValueError("priority: only work that waits has one; add when_available")
        return None
    if wait_for_s is not None and wait_until_at is not None:
        raise ValueError("wait_for_s and wait_until_at: give one of them")
    if not_before_s is not None and not_before_at is not None:
        raise ValueError("not_before_s and not_before_at: give one of them")
    if not_before_s is not None:
        not_before_at = now + not_before_s
    begin_at = now if not_before_at is None else max(now, not_before_at)
    limit_at = wait_until_at
    if limit_at is None:
        limit_at = begin_at + DEFAULT_S if wait_for_s is None else now + wait_for_s
    if limit_at <= now:
        raise ValueError("wait_until_at: that time is over; give a later one")
    if limit_at > now + LONGEST_S:
        days = LONGEST_S / 86_400.0
        raise ValueError(f"the wait would end in more than {days:.0f} days; give an earlier end")
    if begin_at >= limit_at:
        raise ValueError("not_before: the wait ends before that; give an earlier time")
    return Standby(
        limit_at=limit_at,
        not_before_at=not_before_at if begin_at > now else None,
        is_delay=not_before_s is not None,
        priority=priority,
        is_by_clock=wait_until_at is not None,
    )


def standby_asked(case: Case, event: StandbyAsked) -> Decision:
    """A person starts it now, gives it another time or another priority."""
    one = case.snapshot.delegation
    if one is None or not one.on_standby or one.standby is None or one.cancelling:
        state = "not known" if one is None else one.state
        name = event.delegation
        why = f"{name} does not wait for a backend (it is {state}); nothing has changed"
        return _rejected(event, why)
    try:
        after = _changed(one.standby, event, now=case.now)
    except ValueError as error:
        return _rejected(event, str(error))
    if case.snapshot.draining and event.starts:
        return _rejected(event, "the daemon is draining and starts nothing; ask again later")
    case.update(standby=after)
    what = "is started now" if event.starts else "gets other terms"
    case.tell(case.delegation, "standby", outcome=f"{what}, as was asked for")
    case.note("standby.moved", case.delegation, limit_at=after.limit_at, starts=event.starts)
    case.effects.append(WakeWaiting())
    return case.finish(answer=case.delegation)


def _changed(known: Standby, event: StandbyAsked, *, now: float) -> Standby:
    keeps = event.not_before_at is None and event.not_before_s is None
    before_at = known.not_before_at if keeps else event.not_before_at
    is_same_end = event.wait_for_s is None and event.wait_until_at is None
    found = terms(
        when_available=True,
        wait_for_s=event.wait_for_s,
        wait_until_at=known.limit_at if is_same_end else event.wait_until_at,
        not_before_at=None if event.starts else before_at,
        not_before_s=None if event.starts else event.not_before_s,
        priority=known.priority if event.priority is None else event.priority,
        now=now,
    )
    assert found is not None
    return structs.replace(
        known,
        limit_at=found.limit_at,
        not_before_at=found.not_before_at,
        is_delay=known.is_delay if keeps else found.is_delay,
        priority=min(found.priority, known.most_priority),
        is_by_clock=known.is_by_clock if is_same_end else found.is_by_clock,
        starts=event.starts,
        again_at=None if event.starts else known.again_at,
    )


def _rejected(event: StandbyAsked, message: str) -> Decision:
    data = {"delegation": event.delegation}
    return Decision(rejection=Rejection(kind="standby", message=message, data=data))


def within(asked: Standby | None, parent: Delegation | None, *, is_inside: bool) -> Standby | None:
    """
    The terms of work from inside an attempt: it goes before none that its parent would not.

    Args:
        is_inside: Without a parent too: the work repeats what was asked for inside an attempt.
    """
    if asked is None or not (parent or is_inside):
        return asked
    most = 0 if parent is None or parent.standby is None else parent.standby.priority
    return structs.replace(asked, priority=min(asked.priority, most), most_priority=most)


# --- rules of the plan -------------------------------------------------------------------------


def past_limit(case: CaseView) -> End | None:
    """Its time to wait is over before it has begun, also where it waits in line."""
    one, standby = case.delegation, case.delegation.standby
    if standby is None or case.now < standby.limit_at or _attempted(one, standby):
        return None
    if one.question is not None:
        return None
    return exhausted(case, "the time that it was to wait is over")


def not_yet(case: CaseView) -> Step | None:
    """Its time has not come, or this daemon starts nothing."""
    one, standby = case.delegation, case.delegation.standby
    if standby is None or _attempted(one, standby):
        return None
    times = [at for at in (standby.not_before_at, standby.again_at) if at is not None]
    if times and (at := max(times)) > case.now:
        return _wait(case, standby, at, outcome="waits until its time has come")
    if case.snapshot.draining and one.on_standby:
        return _wait(case, standby, standby.limit_at, outcome="waits for the next daemon")
    if one.on_standby and (writer := writer_beside(case, one)) is not None:
        outcome = f"waits for {writer.delegation}, which has the directory"
        starts = standby.starts  # as soon as that has ended
        return _wait(case, standby, standby.limit_at, outcome=outcome, starts=starts)
    return None


def chosen_now(case: CaseView) -> Resolved | None:
    """The candidate of work that a person starts whatever is known of its backends."""
    standby = case.delegation.standby
    if standby is None or not standby.starts:
        return None
    marks_apart = {
        scope: structs.replace(record, outage=None, trial=None)
        for scope, record in case.health.items()
    }
    return case.resolve(case.turn.candidates, request_of(case), health=marks_apart)


def may_doubt(case: CaseView) -> bool:
    """Return whether an early trial may be made: only when the time has come that was set."""
    waiting = case.delegation.waiting
    return waiting is not None and case.now >= waiting.until_at


def when_available(
    case: CaseView, *, trial_at: float | None = None, last: BackendId | None = None
) -> Step | None:
    """
    Wait for a candidate that passes by time or by a repair; None: the work may not, or none does.

    Args:
        trial_at: Time of the next trial of a service that is out.
        last: That service: the role goes to none behind it, so that none of those is waited for.
    """
    one, standby = case.delegation, case.delegation.standby
    if standby is None or case.now >= standby.limit_at:
        return None
    after = structs.replace(standby, attempts=len(one.attempts), hops=len(one.hops))
    turn = turn_of(structs.replace(one, standby=after))
    names = [entry.backend for entry in turn.candidates]
    count = names.index(last) + 1 if last in names else len(names)
    found = case.resolve(turn.candidates[:count], request_after(case.policy, turn))
    if found.choice is None:
        if not any(_passes(verdict) for verdict in found.verdicts):
            return None
        after = structs.replace(after, again_at=None, pauses=0)
        times = (found.retry_at, trial_at, _rare_at(case, found.verdicts))
    elif _is_not_set_up(one, standby):
        return None
    elif _attempted(one, standby):
        pause_s = min(PAUSE_S * 2.0**standby.pauses, LONGEST_PAUSE_S)
        after = structs.replace(after, again_at=case.now + pause_s, pauses=standby.pauses + 1)
        times = (after.again_at, None, None)
    elif trial_at is not None:
        times = (trial_at, None, None)
    else:
        return None  # what stands against the candidate does not pass
    known = [at for at in times if at is not None and at > case.now]
    return _wait(
        case,
        after,
        min(known, default=standby.limit_at),
        outcome="waits until a backend is available",
        verdicts=found.verdicts if found.choice is None else None,
    )


def _passes(verdict: Verdict) -> bool:
    return verdict.verdict in _PASSES or verdict.verdict == "local_network"


def _attempted(one: Delegation, standby: Standby) -> bool:
    """Return whether an attempt was made since it was last on standby."""
    return len(one.attempts) > standby.attempts


def _is_not_set_up(one: Delegation, standby: Standby) -> bool:
    """Return whether all that was tried since could not be started for want of something here."""
    failures = [each.failure for each in one.attempts[standby.attempts :]]
    return bool(failures) and all(
        failure is not None and failure.reason is Reason.NOT_CONFIGURED for failure in failures
    )


def _rare_at(case: CaseView, verdicts: Verdicts) -> float | None:
    """Return when the first stated time of more than a day may be doubted."""
    found = []
    for one in verdicts:
        backend = find_backend(case.policy, one.backend)
        if backend is None or one.verdict != "rate_limited":
            continue
        out = [
            record
            for scope in scopes_of(backend, one.model, one.credential)
            if (record := case.health.get(scope)) is not None
            and view(record, now=case.now).state in ("rate_limited", "broken")
        ]
        is_long = all(
            record.outage is not None
            and record.outage.source == "provider"
            and (record.outage.until_at or 0.0) - record.outage.since_at > RARE_TRIALS_S[-1]
            for record in out
        )
        due = [early_trial_at(record, last_resort_s=RARE_TRIALS_S[0]) for record in out]
        known = [at for at in due if at is not None]
        if out and is_long and len(known) == len(due):
            found.append(max(known))
    return min(found, default=None)


def _wait(
    case: CaseView,
    standby: Standby,
    until_at: float,
    *,
    outcome: str,
    verdicts: Verdicts | None = None,
    starts: bool = False,
) -> Wait | Hold:
    one, before = case.delegation, case.delegation.waiting
    since_at = case.now if standby.since_at is None else standby.since_at
    standby = structs.replace(standby, since_at=since_at, starts=starts)
    until_at = min(until_at, standby.limit_at)
    waiting = Waiting(since_at=since_at, until_at=until_at, limit_at=standby.limit_at)
    if one.on_standby and waiting == before and standby == one.standby:
        return Hold(until_at=until_at)  # many wait at once, and each is woken for each change
    return Wait(
        waiting=waiting,
        outcome=outcome,
        verdicts=verdicts,
        standby=standby,
        numbers={"until_at": until_at, "limit_at": standby.limit_at, "priority": standby.priority},
    )


# --- what begins and ends with it --------------------------------------------------------------


def enter_standby(case: Case, step: Wait) -> None:
    one, standby = case.delegation, step.standby
    if standby is None:
        return
    if one.standby is None or one.standby.since_at is None:
        until_at = step.waiting.until_at
        case.note(
            "standby.began",
            one,
            backend=one.requested,
            until_at=None if until_at >= standby.limit_at else until_at,
            limit_at=standby.limit_at,
        )
    case.update(standby=standby, deadline_at=standby.outer_at)


def leave_standby(case: Case, *, ended: str | None = None) -> None:
    """
    Args:
        ended: The state in which the work ends; None: it starts.
    """
    one, standby = case.delegation, case.delegation.standby
    if standby is None:
        return
    is_first = standby.since_at is not None or not one.attempts
    if standby.since_at is not None:
        case.note("standby.ended", one, backend=one.active, state=ended or "started")
    if ended is None and is_first and standby.timeout_s is not None:
        ends = (standby.outer_at, case.now + standby.timeout_s)
        case.update(deadline_at=min(at for at in ends if at is not None))
    case.update(
        standby=structs.replace(
            standby, since_at=None, starts=False, again_at=None, not_before_at=None
        )
    )


def is_overtaken(case: Case) -> bool:
    """Return whether others on standby are due before it: then all are woken in their order."""
    one = case.delegation
    if not one.on_standby:
        return False
    return any(
        standby_order(other) < standby_order(one)
        for other in case.snapshot.active.values()
        if other.on_standby and other.waiting is not None and other.waiting.until_at <= case.now
    )


def in_order(active: Iterable[Delegation]) -> list[Delegation]:
    """Return unfinished work in the order in which it is woken."""
    return sorted(active, key=standby_order)


def shifted(standby: Standby | None, by_s: float) -> Standby | None:
    """The wall clock was set. What a person named by the clock stays where it is."""
    if standby is None:
        return None

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return structs.replace(
        standby,
        limit_at=standby.limit_at + (0.0 if standby.is_by_clock else by_s),
        since_at=moved(standby.since_at),
        not_before_at=moved(standby.not_before_at) if standby.is_delay else standby.not_before_at,
        again_at=moved(standby.again_at),
        outer_at=moved(standby.outer_at),
    )
