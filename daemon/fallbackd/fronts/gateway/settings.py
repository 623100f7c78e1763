"""What configuration decides of the gateway."""

from typing import Literal

from msgspec import Struct

from fallbackd.config.read_gateway import HOLD_S, MAX_MEMORY_MB


class Rules(Struct, frozen=True, kw_only=True):
    hold: Literal["commit", "whole"] = "commit"
    hold_whole: frozenset[str] = frozenset()
    """Chains and roles that hold their answers to the end, whatever `hold` says."""
    hold_s: float = HOLD_S
    commit_on_reasoning: bool = True
    """Whether an answer begins with what its model thinks."""
    keepalive_s: float | None = None
    """Between two keep-alives in a streamed answer that is held; None: there are none."""
    allow_metered: bool = False
    """Whether a backend that bills each call may stand in for one that does not."""


class Bounds(Struct, frozen=True, kw_only=True):
    max_body_bytes: int = 32 * 1024 * 1024
    max_memory_bytes: int = MAX_MEMORY_MB * 1024 * 1024
    """What is held of all long requests and answers together."""
