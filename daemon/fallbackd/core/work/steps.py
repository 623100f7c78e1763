"""
The next step of a delegation as a value: `plan` finds it and `apply` performs it.

Each of them is also an entry of `explain`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field, structs

from fallbackd.core.case import CaseView
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.reasons import FINAL, WORDS, Reason
from fallbackd.core.records import (
    DelegationState,
    Ending,
    QuestionKind,
    Standby,
    Verdict,
    Waiting,
    without_marks,
)
from fallbackd.core.routing.candidates import Choice
from fallbackd.core.routing.resolve import NEVER_BY_TIME, awaited, without_choice
from fallbackd.core.work.outages import Out
from fallbackd.core.work.resolution import request_of

Verdicts = tuple[Verdict, ...]


class Start(Struct, frozen=True, kw_only=True):
    """Make an attempt. It is a hop, unless it is the same candidate again."""

    choice: Choice
    verdicts: Verdicts | None = None
    """In each step: those of the resolution behind it; None: as they are on record."""
    event: str | None = None
    """The event for which it starts, where that is not the one of the decision."""
    retry_of: AttemptId | None = None
    """The same candidate once more, from the beginning."""
    resumes: AttemptId | None = None
    """The same candidate once more, in the conversation of that attempt."""
    rotates: bool = False
    """Another credential of the same candidate."""
    has_waited: bool = False
    """The time that its provider stated was waited for, which is done once."""
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Wait(Struct, frozen=True, kw_only=True):
    """Make no attempt before an instant, or before something changes."""

    waiting: Waiting
    outcome: str = ""
    """For `explain`; empty: that was said before."""
    verdicts: Verdicts | None = None
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`
    evidence: str = ""
    standby: Standby | None = None
    """The terms of work that is on standby from now on, or still."""


class Queue(Struct, frozen=True, kw_only=True):
    """Wait for a turn: for a free place on this host, or behind another delegation."""

    behind: DelegationId | None = None
    """The one that has the session or the directory; None: a place is waited for."""
    outcome: str
    waiting: Waiting | None = None
    verdicts: Verdicts | None = None
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Ask(Struct, frozen=True, kw_only=True):
    """Open a question: nothing is started before a person has answered it."""

    kind: QuestionKind
    text: str
    usable: Mapping[str, str]
    """Backends that a person could choose, each with the rules that speak against it, or ""."""
    wait: str | None = None
    """What waiting would wait for; None: there is nothing to wait for."""
    verdicts: Verdicts | None = None
    out: Out | None = None
    """The service that is out, where that is why."""


class HandBack(Struct, frozen=True, kw_only=True):
    """The caller does the work itself: nothing is started."""

    choice: Choice
    verdicts: Verdicts | None = None


class End(Struct, frozen=True, kw_only=True):
    """End the delegation; the answer is deferred until its nested work has stopped."""

    outcome: Ending
    why: str = ""
    """For `explain`, before the end itself; empty: the end says it all."""
    verdicts: Verdicts | None = None
    out: Out | None = None
    withdraws: bool = False
    """Every candidate failed alike: the marks of the way are withdrawn."""
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Hold(Struct, frozen=True, kw_only=True):
    """Change nothing now."""

    until_at: float | None = None
    """Time to look again, if nothing happens before."""
    is_nested: bool = False
    """What was delegated from inside is not over: each of its ends brings a `Woke`."""


Obstacle = Literal["line", "question", "forced", "retry"]


class Clear(Struct, frozen=True, kw_only=True):
    """An obstacle on record is gone: it is cleared, and the next step is planned."""

    what: Obstacle
    """`line`: what it was queued behind; `question`: its service has recovered; `forced`: a
    person's choice that cannot be used; `retry`: the candidate that was waited for."""
    outcome: str = ""
    verdicts: Verdicts | None = None


Step = Start | Wait | Queue | Ask | HandBack | End | Hold


def ended(state: DelegationState, message: str | None = None, **more: Any) -> End:
    """An end with an outcome; `more` are its other fields."""
    return End(outcome=Ending(state=state, message=message, **more))


# The end of a delegation where no step is left: its state, failure and words.


BY_CALLER = "cancelled by the caller"


def deadline_passed(*, now: float) -> End:
    failure = make_failure(
        Reason.TIMEOUT,
        now=now,
        detail="deadline",
        confidence="structured",
        signature="fallbackd/deadline",
        evidence="the caller's own deadline has passed",
    )
    failure = structs.replace(failure, marks_health=False, retryable=False, hop=False)
    message = "deadline exceeded (timeout_s)"
    return End(outcome=Ending(state="failed", failure=failure, message=message))


def exhausted(case: CaseView, why: str) -> End:
    """No candidate is left: `refused` with the time to retry, or `failed` by the task itself."""
    one = case.delegation
    failures = [each.failure for each in one.attempts if each.failure is not None]
    health = None
    is_denied = bool(failures) and all(each.reason is Reason.PERMISSION for each in failures)
    if is_denied:
        # Shared by all: it is about the request, its directory as a rule.
        health = {**case.health, **without_marks(case.health, one.turn.marks)}
        why = "every backend that was tried was denied permission: check the directory of the work"
    final = case.resolve(case.turn.candidates, request_of(case), health=health)
    verdicts = without_choice(final, f"not used: {why}").verdicts
    last = reported_failure(case, verdicts)
    outcome = Ending(state="refused", failure=last, message=why, retry_at=earliest_return(verdicts))
    if last is not None and all(each.reason.row.about == "request" for each in (*failures, last)):
        message = f"every backend that was tried rejects the task itself; {why}"
        outcome = Ending(state="failed", failure=last, message=message)
    return End(outcome=outcome, why=why, verdicts=verdicts, withdraws=is_denied)


def reported_failure(case: CaseView, verdicts: Verdicts) -> Failure | None:
    """
    Choose the failure that is reported to the caller: the last one, unless another one is over by
    itself, and what failed since was no more than a fallback.
    """
    attempts = case.delegation.attempts
    failures = [one.failure for one in attempts if one.failure is not None]
    if not failures:
        return None
    last = failures[-1]
    if last.reason.row.is_over_by_itself or last.reason in FINAL:
        return last
    for before in reversed(failures):
        if before.reason.row.is_over_by_itself:
            return before
    out = awaited(verdicts, asked={one.backend for one in attempts})
    return last if out is None else _out_of_rotation(out, now=case.now)


def _out_of_rotation(out: Verdict, *, now: float) -> Failure:
    reason = Reason(out.reason or "")
    text = f"{out.backend} is out of rotation: {reason.value}"
    reset_s = None if out.until_at is None else out.until_at - now
    return make_failure(
        reason,
        now=now,
        reset_s=reset_s,
        signature="fallbackd/out-of-rotation",
        evidence=text,
        marks=False,
    )


def earliest_return(verdicts: Verdicts) -> float | None:
    """
    Return when the first candidate is usable again, where a time is known: of those that need no
    repair, if there are any.
    """
    known = [
        (not _is_over_by_itself(one), one.until_at)
        for one in verdicts
        if one.until_at is not None
        and one.verdict not in NEVER_BY_TIME
        and (one.state in ("rate_limited", "broken") or one.verdict == "in_trial")
    ]
    return min(known, default=(False, None))[1]


def _is_over_by_itself(one: Verdict) -> bool:
    return one.reason not in WORDS or Reason(one.reason or "").row.is_over_by_itself
