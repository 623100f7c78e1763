"""How long one backend may take to answer: by its own limits, where it has some."""

from msgspec import Struct

from fallbackd.core.policy import Backend
from fallbackd.fronts.gateway.settings import Rules

STALL_S = 180.0
"""Silence within an answer that has begun, where the backend sets none."""
WHOLE_S = 600.0
"""For an answer that comes in one piece, where the backend sets no limit."""


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
    unsaid_s: float = WHOLE_S
    """Longest wait behind `first_s` for words of an answer that was opened."""
    waits_for_text: bool = False
    """Thoughts of the model are held until its answer begins."""


def patience_with(backend: Backend | None, rules: Rules, *, is_streamed: bool) -> Patience:
    own_first_s = None if backend is None else backend.first_answer_s
    own_stall_s = None if backend is None else backend.stall_s
    stall_s = own_stall_s or STALL_S
    first_s = own_first_s or (rules.hold_s if is_streamed else WHOLE_S)
    if not is_streamed:  # its first words come with its last
        first_s = max(first_s, stall_s)
    return Patience(
        first_s=first_s,
        stall_s=stall_s,
        may_think=own_first_s is None,
        waits_for_text=not rules.commit_on_reasoning,
    )
