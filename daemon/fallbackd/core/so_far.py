"""How far a delegation has come along its chain: its turn, with what was tried by now."""

from msgspec import structs

from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.turn import Tried, Turn

FREE_TIERS = frozenset({"model", "in_session"})
"""Moves there do not count: a stand-in for a model stays where it is, the caller starts nothing."""


def reactive_hops(delegation: Delegation) -> int:
    """Moves that count."""
    return sum(
        1 for hop in delegation.hops if hop.trigger == "reactive" and hop.tier_to not in FREE_TIERS
    )


def turn_of(delegation: Delegation) -> Turn:
    """The turn of a delegation with what was tried by now."""
    asked = delegation.turn
    return structs.replace(
        asked,
        candidates=asked.candidates if delegation.failover else asked.candidates[:1],
        prompt_tokens=_whole_tokens(delegation),
        tried=tuple(map(_tried, delegation.attempts)),
        hops=reactive_hops(delegation),
    )


def _tried(attempt: Attempt) -> Tried:
    tried = Tried(
        backend=attempt.backend,
        model=attempt.model,
        credential=attempt.credential,
        tier=attempt.tier,
    )
    return tried if attempt.failure is None else tried.failed_with(attempt.failure)


def _whole_tokens(delegation: Delegation) -> int | None:
    """The prompt with the note about work that was begun, which every hop adds to it."""
    tokens = delegation.turn.prompt_tokens
    if tokens is None:
        return None
    begun = [one for one in delegation.attempts if one.effects != "none"]
    if not begun:
        return tokens
    names = sum(len(name) for one in begun for name in one.changed_files[:20])
    return tokens + 80 * len(begun) + names // 4
