"""
Which delegation gets a free place on this host: of the client that has least, the first.

A client is a user and a session of processes. One that delegates a hundred prompts at once gets
every place while it is alone, and every second one as soon as another client asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from fallbackd.core.ids import DelegationId
from fallbackd.core.records import Delegation

NESTED_PLACES = 2
"""
Work from inside of an attempt may run beyond the maximum, up to this many times of it: its parent
holds a place and waits for it, and a host full of waiting parents would wait for ever.
"""

Active = Mapping[DelegationId, Delegation]


def free_places(active: Active, max_running: int) -> int:
    return max_running - sum(1 for one in active.values() if one.running is not None)


def turns(active: Active) -> list[DelegationId]:
    """Those that wait for a place, in the order in which they get one."""
    return _in_turn(active, (one for one in active.values() if _waits_for_place(one)))


def has_place(active: Active, one: Delegation, max_running: int) -> bool:
    """Whether a delegation may start an attempt now, and is not before its turn."""
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
    for one in sorted(waiting, key=lambda one: (one.created_at, one.delegation)):
        rank = -1 if one.parent is not None else has[one.client]
        has[one.client] += 1
        ranked.append((rank, one.created_at, one.delegation))
    return [delegation for _, _, delegation in sorted(ranked)]
