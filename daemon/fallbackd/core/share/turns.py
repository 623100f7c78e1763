"""
Whose turn it is to probe a scope where machines cannot ask the arbiter.

Time on the server's clock is cut into turns of equal length. Each turn of a scope belongs to the
machine whose digest is the highest among those that are known, itself included. Of two machines
that know each other at most one finds its own digest the higher one, whatever else each of them
knows: so of machines that know each other at most one begins a probe in a turn, without a word
between them.
"""

import hashlib
import math
from collections.abc import Collection

from msgspec import Struct

from fallbackd.core.ids import ScopeId

TURN_S = 60.0
"""As long as the arbiter would have leased it."""


class ProbeTurn(Struct, frozen=True, kw_only=True):
    instance: str
    """Whose turn it is."""
    ends_in_s: float


def turn_of(scope: ScopeId, instances: Collection[str], *, now: float) -> ProbeTurn:
    """
    Args:
        scope: By the name under which all machines know it.
        instances: Machines that are known; never empty.
        now: On the server's clock.
    """
    number = math.floor(now / TURN_S)

    def digest(instance: str) -> bytes:
        return hashlib.sha256(f"{number}\0{scope}\0{instance}".encode()).digest()

    return ProbeTurn(
        instance=max(instances, key=lambda one: (digest(one), one)),
        ends_in_s=(number + 1) * TURN_S - now,
    )
