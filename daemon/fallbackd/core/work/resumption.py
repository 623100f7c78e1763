"""
Resume an agent's own conversation after a passing failure.

An attempt that has used a tool cannot be repeated: its work would be done twice. Its agent still
has the whole conversation on disk, so the same agent continues it, once; only then does another
one start over with a note of what was done.
"""

from fallbackd.core.case import Case
from fallbackd.core.failures import NO_CONVERSATION, Failure, Reason, make_failure
from fallbackd.core.policy import Backend
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.work.retry_budget import backoff_s, budget_of, may_retry, shown
from fallbackd.core.work.waits import is_past_deadline, stated_until

PATIENCE_TIMES = 10
"""Work that was begun is worth a longer wait than a first answer."""
CONTINUE = (
    "Your last turn was cut off by a technical failure, not by the user; the work that you had "
    "done is kept. Continue the task where it stopped: check the results of your last steps "
    "instead of repeating them, finish the task, and give your complete final answer."
)


def resume_at(
    case: Case, attempt: Attempt, failure: Failure, backend: Backend | None, *, luck: float
) -> float | None:
    """When the conversation of an attempt that has ended is resumed; None: it is given up."""
    delegation = case.delegation
    if backend is None or not _is_resumable(attempt, failure):
        return None
    if len(delegation.attempts) >= delegation.turn.budget:
        return None
    stated_at = stated_until(failure, now=case.now) or case.now
    at = max(case.now + backoff_s(case, backend, 1, luck=luck), stated_at)
    if at > case.now + PATIENCE_TIMES * case.policy.patience_s(delegation.mode):
        return None
    if is_past_deadline(delegation, at):
        return None
    if may_retry(case):
        return at
    why = "not resumed: the budget of this host for further attempts is used up"
    case.tell(delegation, "attempt failed", outcome=why, retry_budget=shown(budget_of(case)))
    return None


def _is_resumable(attempt: Attempt, failure: Failure) -> bool:
    """Whether an attempt has work to lose, for the first time, to a failure that passes."""
    if attempt.effects == "none" or attempt.conversation is None or attempt.answered_at is None:
        return False
    is_passing = failure.reason.row.is_passing and failure.hop  # else trouble of this machine
    return is_passing and attempt.resumes is None


def resumed_conversation(delegation: Delegation, attempt: Attempt) -> str | None:
    """The conversation that an attempt continues; None: it begins one."""
    resumed = delegation.attempt(attempt.resumes) if attempt.resumes else None
    return None if resumed is None else resumed.conversation


def not_resumed(why: str, *, now: float) -> Failure:
    return make_failure(
        Reason.SESSION,
        now=now,
        detail=NO_CONVERSATION,
        confidence="structured",
        signature=f"fallbackd/{NO_CONVERSATION}",
        evidence=f"the conversation could not be resumed: {why}",
    )


_OF_WHAT_WAS_SENT = (Reason.FORMAT_ERROR, Reason.CONTEXT_OVERFLOW)


def own_failure(case: Case, attempt: Attempt, failure: Failure) -> Failure:
    """
    What an attempt tells of its backend.

    A request with a conversation that we have written is refused for what we have written. Where a
    conversation could not be resumed, the backend is left for the failure that had
    interrupted it.
    """
    delegation = case.delegation
    is_begun = attempt.answered_at is not None or attempt.effects != "none"
    if attempt.carried == "native" and not is_begun and failure.reason in _OF_WHAT_WAS_SENT:
        return not_resumed(failure.evidence, now=case.now)
    resumed = delegation.attempt(attempt.resumes) if attempt.resumes else None
    if failure.detail != NO_CONVERSATION or resumed is None or resumed.failure is None:
        return failure
    case.tell(
        delegation,
        "attempt failed",
        outcome=f"{attempt.backend} could not resume the conversation of {resumed.attempt}",
        evidence=failure.evidence,
        signature=failure.signature,
    )
    return resumed.failure
