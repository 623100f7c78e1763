"""
Where a failed call leads whose caller makes the next one itself: callers that report, and turns of
sessions of opencode servers. A delegation is held by the same bounds (`work.plan`).
"""

from msgspec import Struct, structs

from fallbackd.core.case import Case
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.policy import IN_SESSION_KIND
from fallbackd.core.routing.configured import Choice
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved, without_choice
from fallbackd.core.so_far import FREE_TIERS
from fallbackd.core.turn import Halt, Tried, Turn
from fallbackd.core.work.resolution import (
    entry_of,
    forbidden_by,
    futile,
    halted,
    is_form_error_twice,
    request_after,
)
from fallbackd.core.work.rotation import rotated
from fallbackd.core.work.search import search

RULES = frozenset({"on_outage", "must_differ", "consent"})
"""Bounds that a person could lift."""
_WHY_NONE = {
    None: "no other candidate of the chain is available",
    "must_differ": "every available backend belongs to an excluded model family (must_differ_from)",
    "consent": "only candidates that bill by use are available (allow_metered)",
}


class Following(Struct, frozen=True, kw_only=True):
    """
    Attributes:
        resolved: With the choice, or with the verdicts that speak against every candidate.
        is_same: The candidate that failed, once more or with another credential.
    """

    turn: Turn
    resolved: Resolved
    halt: Halt | None = None
    is_same: bool = False

    @property
    def is_handed_back(self) -> bool:
        """The caller does the work itself: its session stays where it was."""
        choice = self.resolved.choice
        return choice is not None and choice.backend.kind == IN_SESSION_KIND

    @property
    def moves(self) -> bool:
        """Whether another candidate makes the next call."""
        return self.halt is None and not self.is_same and not self.is_handed_back


def ended_by(case: Case, turn: Turn, tried: Tried) -> tuple[Turn, Halt | None]:
    """
    The record with a call that has failed, and whether that is the end: a failure of the task
    itself, or work that two candidates fail at alike. The latter withdraws the marks of the way.
    """
    backend = find_backend(case.policy, tried.backend)
    if backend is not None:
        tier = entry_of(turn.candidates, tried, backend).tier
        tried = structs.replace(tried, tier=tier)
    turn = structs.replace(turn, tried=(*turn.tried, tried))
    cause = futile(turn)
    if cause is None:
        return turn, None
    if cause == "task":
        return turn, Halt(bound="task", why=f"{tried.reason} is of the task itself")
    case.withdraw(turn.marks)
    why = f"two candidates failed with {tried.reason}: the task is the likely cause"
    return structs.replace(turn, marks=()), Halt(bound="poison", why=why)


def marked(
    case: Case, turn: Turn, failure: Failure, *, started_at: float | None, luck: float
) -> Turn:
    """Mark what the last failure is about."""
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None:
        return turn
    made = case.mark(
        failure,
        backend,
        model=last.model,
        credential=last.credential,
        started_at=started_at,
        luck=luck,
    )
    return turn if made is None else structs.replace(turn, marks=(*turn.marks, made))


def denied(case: Case, following: Following) -> None:
    """Permission that every candidate was denied is about the request: its marks are withdrawn."""
    turn, halt = following.turn, following.halt
    if halt is None or halt.bound in RULES:
        return
    if all(one.reason is Reason.PERMISSION for one in turn.tried):
        case.withdraw(turn.marks)


def fail_over(case: Case, turn: Turn, *, once_more: bool = False, may_try: bool) -> Following:
    """
    The candidate after the last one that was tried, or why there is none.

    Args:
        once_more: The same candidate is asked alike.
        may_try: A trial can be leased to the caller.
    """
    same = _same(case, turn, once_more=once_more)
    if same is not None and same.choice is not None:
        return _following(case, turn, same, same.choice, is_same=True)
    candidates, halt = halted(case.policy, turn)
    if is_form_error_twice(turn):
        why = "two providers reject the form of the request"
        halt = Halt(bound="format_error", why=why)
    request = request_after(case.policy, turn)
    if halt is not None:
        seen = case.resolve(turn.candidates, request)
        return Following(
            turn=turn, resolved=without_choice(seen, f"not used: {halt.why}"), halt=halt
        )
    found = search(case, turn, candidates, request, may_doubt=lambda _: may_try)
    resolved, out = found.resolved, found.out
    if out is not None:
        why = f"{out.text}, and the role does not go elsewhere then (on_outage)"
        halt = Halt(bound="on_outage", why=why)
        return Following(turn=turn, resolved=resolved, halt=halt)
    if resolved.choice is None:
        rule = forbidden_by(case, candidates, request)
        halt = Halt(bound=rule or "none_left", why=_WHY_NONE[rule])
        return Following(turn=turn, resolved=resolved, halt=halt)
    return _following(case, turn, resolved, resolved.choice)


def _same(case: Case, turn: Turn, *, once_more: bool) -> Resolved | None:
    if not once_more:
        return rotated(case, turn)
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None:
        return None
    entry = entry_of(turn.candidates, last, backend)
    request = Request(prompt_tokens=turn.prompt_tokens, credential=last.credential)
    return case.resolve((entry,), request)


def _following(
    case: Case, turn: Turn, resolved: Resolved, choice: Choice, *, is_same: bool = False
) -> Following:
    counts = not is_same and choice.entry.tier not in FREE_TIERS
    after = named(case, turn, choice)
    after = structs.replace(after, hops=turn.hops + int(counts))
    return Following(turn=after, resolved=resolved, is_same=is_same)


def named(case: Case, turn: Turn, choice: Choice) -> Turn:
    """The candidate that makes the next call."""
    return structs.replace(
        turn,
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        at=case.now,
    )
