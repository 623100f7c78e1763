"""How long one backend may take to answer: by its own limits, where it has some."""

import math
from collections.abc import Mapping

from msgspec import Struct

from fallbackd.core.policy import Backend
from fallbackd.fronts.gateway.pauses import Awaited
from fallbackd.fronts.gateway.settings import Rules

STALL_S = 180.0
"""Silence within an answer that has begun, where the backend sets none."""
WHOLE_S = 300.0
"""For an answer that comes in one piece, where the backend sets no limit."""
UNSAID_S = 600.0
IN_A_ROW = 3
"""So many callers that leave without a byte show that a backend hangs."""
LEFT_S = 2.0
"""A caller that leaves earlier has changed its mind."""
SHARE = 2 / 3
"""Of the time that a caller still waits: for a backend that others can follow."""
READ_TIMEOUT = "x-stainless-read-timeout"
"""Header of the clients of OpenAI and Anthropic: how long they wait, in seconds."""


class Patience(Struct, frozen=True, kw_only=True):
    first_s: float
    """Until the first words."""
    stall_s: float
    """Between words."""
    may_think: bool = False
    """
    Without words an answer that was opened in time is no failure: what is held of it is passed on
    after `first_s`, and silence counts from then.
    """
    unsaid_s: float = UNSAID_S
    """Longest wait behind `first_s` for words of an answer that was opened."""
    is_of_caller: bool = False
    """`first_s` is what the caller allows, and less than the limit of the backend."""
    waits_for_text: bool = False
    """Thoughts of the model are held until its answer begins."""


class Impatience:
    """
    Callers that left one candidate before it said anything, one after another.

    What hangs for longer than its callers wait would never be found by a limit of ours.
    """

    def __init__(self) -> None:
        self._left: dict[Awaited, tuple[int, float]] = {}

    def heard(self, one: Awaited) -> None:
        self._left.pop(one, None)

    def left(self, one: Awaited, *, after_s: float, first_s: float) -> bool:
        """
        Whether this one shows that the candidate hangs: the third, if they have waited for a third
        of its time together.

        Args:
            first_s: How long it may take until its first words.
        """
        if after_s < LEFT_S:
            return False
        count, waited_s = self._left.pop(one, (0, 0.0))
        count, waited_s = count + 1, waited_s + after_s
        if count >= IN_A_ROW and waited_s >= first_s / 3:
            return True
        self._left[one] = count, waited_s
        return False


def share_s(left_s: float, *, is_last: bool) -> float:
    """
    How much of the time that a caller still waits one backend has.

    Args:
        is_last: No other backend would be asked behind it.
    """
    return max(0.0, left_s) * (1.0 if is_last else SHARE)


def waits_s(named: Mapping[str, str]) -> float | None:
    """How long the client of a request waits for the next byte, where it says so."""
    try:
        found = float(named.get(READ_TIMEOUT, ""))
    except ValueError:
        return None
    return found if 0 < found < math.inf else None


def patience_with(
    backend: Backend | None, rules: Rules, *, is_streamed: bool, caller_s: float | None = None
) -> Patience:
    """
    Args:
        caller_s: How long the caller waits for this backend, where it is known.
    """
    own_first_s = None if backend is None else backend.first_answer_s
    own_stall_s = None if backend is None else backend.stall_s
    stall_s = own_stall_s or STALL_S
    first_s = own_first_s or (rules.hold_s if is_streamed else WHOLE_S)
    if not is_streamed:  # its first words come with its last
        first_s = max(first_s, stall_s)
    is_of_caller = not is_streamed and caller_s is not None and caller_s < first_s
    return Patience(
        first_s=caller_s if is_of_caller and caller_s is not None else first_s,
        is_of_caller=is_of_caller,
        stall_s=stall_s,
        may_think=own_first_s is None,
        waits_for_text=not rules.commit_on_reasoning,
    )
