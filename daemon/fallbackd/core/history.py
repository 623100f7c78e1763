"""
The use of a backend by the hour: its calls, its failures, and the states that it went through.

The hour that is running lies in the `Meter` of its backend; one that is over is kept for a year.
"""

from collections.abc import Mapping

from msgspec import Struct, field, structs

from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage

HOUR_S = 3600.0
KEPT_S = 366 * 24 * HOUR_S
MAX_MOVES = 60
"""Changes of state in one hour. Beyond, the last one stands for those before it."""
MAX_SHARES = 40
"""Roles and directories in one hour. What is beyond is counted together."""
INSTANT_S = 0.001
STOPPED = "stopped"
"""State while no daemon ran."""
OTHERS = "…"


class Move(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state that a backend came into."""

    at: float
    state: str
    reason: str | None = None


class Share(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests of one role in one directory: delegations, and calls through the gateway."""

    role: str = ""
    project: str = ""
    requests: int = 0
    answered: int = 0
    rescued: int = 0
    """Of those answered, the ones that another backend answered than the one that was asked."""
    usage: Usage = Usage()


class HourUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    backend: BackendId
    hour: int
    """Since the epoch."""
    moves: tuple[Move, ...] = ()
    """The first is the state at the beginning."""
    calls: int = 0
    answered: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Calls that failed, by reason."""
    took_s: float = 0.0
    """Time of the calls that were answered, together."""
    longest_s: float = 0.0
    usage: Usage = Usage()
    hops: tuple[tuple[str, str, int], ...] = ()
    """(next backend, reason, count): failovers away from this one."""
    shares: tuple[Share, ...] = ()
    """By the backend that answered, else the one that was asked last."""
    plan: tuple[tuple[str, float], ...] = ()
    """(window, used percent) as last seen."""

    @property
    def begin_at(self) -> float:
        return self.hour * HOUR_S


def hour_of(at: float) -> int:
    return int(at // HOUR_S)


def begun(backend: BackendId, before: HourUse | None, *, now: float) -> HourUse:
    """The hour of `now`. It begins in the state in which the one before ended."""
    one = HourUse(backend=backend, hour=hour_of(now))
    last = before.moves[-1] if before is not None and before.moves else None
    if before is None or last is None or before.hour != one.hour - 1:
        state = "healthy" if last is None else STOPPED
        return structs.replace(one, moves=(Move(at=now, state=state),))
    return structs.replace(one, moves=(structs.replace(last, at=one.begin_at),))


def moved(one: HourUse, state: str, reason: str | None, *, at: float) -> HourUse:
    if one.moves and (one.moves[-1].state, one.moves[-1].reason) == (state, reason):
        return one
    kept = one.moves
    if kept and (kept[-1].at >= at or len(kept) >= MAX_MOVES):
        kept, at = kept[:-1], min(at, kept[-1].at)
    return structs.replace(one, moves=(*kept, Move(at=at, state=state, reason=reason)))


def called(one: HourUse, state: str, reason: str | None, took_s: float | None) -> HourUse:
    """
    Count a call that has ended.

    Args:
        state: `succeeded`, `failed`, or another one, which is neither.
        took_s: None: that is not known.
    """
    failures = one.failures
    if state == "failed":
        failures = {**failures, reason or "unknown": failures.get(reason or "unknown", 0) + 1}
    took_s = max(0.0, took_s or 0.0) if state == "succeeded" else 0.0
    return structs.replace(
        one,
        calls=one.calls + 1,
        answered=one.answered + (state == "succeeded"),
        failures=failures,
        took_s=one.took_s + took_s,
        longest_s=max(one.longest_s, took_s),
    )


def hopped(one: HourUse, to: BackendId, reason: str) -> HourUse:
    counts = {(left, why): count for left, why, count in one.hops}
    counts[to, reason] = counts.get((to, reason), 0) + 1
    return structs.replace(one, hops=tuple((*key, count) for key, count in counts.items()))


def shared(one: HourUse, more: Share) -> HourUse:
    known = {(each.role, each.project): each for each in one.shares}
    key = (more.role, more.project)
    if key not in known and len(known) >= MAX_SHARES:
        key = (OTHERS, OTHERS)
    before = known.get(key) or Share(role=key[0], project=key[1])
    known[key] = together(before, more)
    return structs.replace(one, shares=tuple(known.values()))


def together(left: Share, right: Share) -> Share:
    return structs.replace(
        left,
        requests=left.requests + right.requests,
        answered=left.answered + right.answered,
        rescued=left.rescued + right.rescued,
        usage=left.usage + right.usage,
    )


def planned(one: HourUse, seen: Mapping[str, float]) -> HourUse:
    """Keep how much of each window of a plan is used."""
    return structs.replace(one, plan=tuple({**dict(one.plan), **seen}.items()))
