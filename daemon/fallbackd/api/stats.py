"""
Availability, failovers and cost over time, added up from the hours that are kept.

The hours are read and added up in a thread: a report over a year delays no other call.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain as joined
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from fallbackd.api.handler import ApiError, Handler
from fallbackd.api.health import USABLE
from fallbackd.api.host import Caller
from fallbackd.core.health import SEVERITY
from fallbackd.core.history import HOUR_S, STOPPED, HourUse, Share, hour_of, together
from fallbackd.core.policy import Policy
from fallbackd.core.protocol import Usage
from fallbackd.ports.store import StoreUnwritable
from fallbackd_client.wire.methods.stats import (
    STATS,
    BackendStats,
    ChainStats,
    FailoverRow,
    OutageRow,
    ShareRow,
    StatsParams,
    StatsResult,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

WEEK_S = 7 * 24 * HOUR_S
MAX_OUTAGES = 200
MAX_SHARES = 50
_RANK = {"": -2, STOPPED: -1, **{str(state): rank for state, rank in SEVERITY.items()}}
"""Ranks of the states in one part of the time: the highest one is shown."""


class Span(NamedTuple):
    """A time in one state."""

    begin_at: float
    end_at: float
    state: str
    reason: str | None


class Parts:
    """The time of a report, in equal parts."""

    def __init__(self, since_at: float, until_at: float, count: int) -> None:
        self.since_at, self.until_at, self.count = since_at, until_at, count
        self.length_s = (until_at - since_at) / count

    def at(self, at: float) -> int:
        place = int((at - self.since_at) / self.length_s)
        return min(self.count - 1, max(0, place))


class BackendSum:
    """Sums of one backend."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.spans: list[Span] = []
        self.calls = self.answered = 0
        self.reasons: dict[str, int] = defaultdict(int)
        self.took_s = self.longest_s = 0.0
        self.usage = Usage()
        self.calls_by = [0] * parts.count
        self.failed_by = [0] * parts.count
        self.took_by = [(0.0, 0)] * parts.count
        self.plan_by: dict[str, list[float | None]] = {}

    def add(self, one: HourUse, *, now: float) -> None:
        self._add_states(one, now=now)
        self.calls += one.calls
        self.answered += one.answered
        for reason, count in one.failures.items():
            self.reasons[reason] += count
        self.took_s += one.took_s
        self.longest_s = max(self.longest_s, one.longest_s)
        self.usage += one.usage
        place = self._parts.at(one.begin_at + HOUR_S / 2)
        self.calls_by[place] += one.calls
        self.failed_by[place] += sum(one.failures.values())
        took_s, number = self.took_by[place]
        self.took_by[place] = (took_s + one.took_s, number + one.answered)
        for window, percent in one.plan:
            row = self.plan_by.setdefault(window, [None] * self._parts.count)
            row[place] = max(percent, row[place] or 0.0)

    def _add_states(self, one: HourUse, *, now: float) -> None:
        """Spans of the hour, each joined to the one before where it continues that."""
        # A clock that was set back is behind the moves of the hour that it left.
        last_at = max(one.begin_at + HOUR_S if one.hour < hour_of(now) else now, one.begin_at)
        ends = [*(move.at for move in one.moves[1:]), last_at]
        for move, end_at in zip(one.moves, ends, strict=True):
            begin_at = max(move.at, self._parts.since_at)
            end_at = min(end_at, self._parts.until_at)
            if end_at <= begin_at:
                continue
            span = Span(begin_at, end_at, move.state, move.reason)
            before = self.spans[-1] if self.spans else None
            if before is not None and before[1:] == (begin_at, *span[2:]):
                span = self.spans.pop()._replace(end_at=end_at)
            self.spans.append(span)

    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in self.spans:
            found[one.state] = found.get(one.state, 0.0) + one.end_at - one.begin_at
        return found

    def outages(self, backend: str, *, until_at: float) -> list[OutageRow]:
        """One that a time without a daemon has interrupted is still the same."""
        found: list[Span] = []
        is_same = False
        for one in self.spans:
            if one.state == STOPPED:
                continue
            is_out = one.state not in USABLE
            if is_out and is_same and found[-1][2:] == one[2:]:
                found[-1] = found[-1]._replace(end_at=one.end_at)
            elif is_out:
                found.append(one)
            is_same = is_out
        return [
            OutageRow(
                backend=backend,
                state=one.state,
                reason=one.reason,
                began_at=one.begin_at,
                ended_at=None if one.end_at >= until_at else one.end_at,
            )
            for one in found
        ]

    def stats(self, backend: str) -> BackendStats:
        seconds = self.seconds()
        strip = [""] * self._parts.count
        for one in self.spans:
            last = self._parts.at(one.end_at - self._parts.length_s * 1e-6)
            for place in range(self._parts.at(one.begin_at), last + 1):
                strip[place] = max(strip[place], one.state, key=lambda state: _RANK.get(state, 0))
        return BackendStats(
            backend=backend,
            seconds={state: round(found, 3) for state, found in seconds.items()},
            availability=_share_of(
                sum(found for state, found in seconds.items() if state in USABLE),
                sum(found for state, found in seconds.items() if state != STOPPED),
            ),
            calls=self.calls,
            answered=self.answered,
            failed=sum(self.reasons.values()),
            reasons=dict(self.reasons),
            mean_s=_share_of(self.took_s, self.answered),
            longest_s=self.longest_s,
            **_used(self.usage),
            strip=tuple(strip),
            calls_by=tuple(self.calls_by),
            failed_by=tuple(self.failed_by),
            mean_s_by=tuple(_share_of(*one) for one in self.took_by),
            plan_by={window: tuple(row) for window, row in self.plan_by.items()},
        )


def _share_of(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _used(usage: Usage) -> dict[str, Any]:
    return msgspec.structs.asdict(usage)


class Report:
    """
    Args:
        chains: Backends by the name of their chain, of those whose availability is wanted.
    """

    def __init__(self, parts: Parts, chains: Mapping[str, Sequence[str]], *, now: float) -> None:
        self._parts, self._chains, self._now = parts, chains, now
        self._backends: dict[str, BackendSum] = {}
        self._hops: dict[tuple[str, str, str], int] = defaultdict(int)
        self._shares: dict[tuple[str, str], Share] = {}
        self._hours = 0
        self._known_since_at: float | None = None

    def add_all(self, hours: Iterable[HourUse]) -> None:
        for one in hours:
            self.add(one)

    def add(self, one: HourUse) -> None:
        if one.begin_at >= self._parts.until_at or one.begin_at + HOUR_S <= self._parts.since_at:
            return
        self._hours += 1
        if self._known_since_at is None or one.begin_at < self._known_since_at:
            self._known_since_at = one.begin_at
        found = self._backends.get(one.backend)
        if found is None:
            found = self._backends[one.backend] = BackendSum(self._parts)
        found.add(one, now=self._now)
        for to, reason, count in one.hops:
            self._hops[one.backend, to, reason] += count
        for share in one.shares:
            before = self._shares.get((share.role, share.project))
            after = share if before is None else together(before, share)
            self._shares[share.role, share.project] = after

    def result(self) -> StatsResult:
        until_at = self._parts.until_at
        outages = [
            each
            for name, one in self._backends.items()
            for each in one.outages(name, until_at=until_at)
        ]
        roles = self._rows("role")
        return StatsResult(
            since_at=self._parts.since_at,
            until_at=until_at,
            bucket_s=self._parts.length_s,
            hours=self._hours,
            known_since_at=self._known_since_at,
            requests=sum(one.requests for one in roles),
            answered=sum(one.answered for one in roles),
            rescued=sum(one.rescued for one in roles),
            backends=tuple(one.stats(name) for name, one in sorted(self._backends.items())),
            chains=tuple(self._chain(*one) for one in self._chains.items()),
            outages=tuple(sorted(outages, key=lambda one: -one.began_at)[:MAX_OUTAGES]),
            outages_total=len(outages),
            failovers=tuple(
                FailoverRow(left=left, to=to, reason=reason, count=count)
                for (left, to, reason), count in sorted(
                    self._hops.items(), key=lambda one: (-one[1], one[0])
                )
            ),
            roles=tuple(roles[:MAX_SHARES]),
            projects=tuple(self._rows("project")[:MAX_SHARES]),
        )

    def _rows(self, kind: Literal["role", "project"]) -> list[ShareRow]:
        sums: dict[str, Share] = {}
        for one in self._shares.values():
            name = getattr(one, kind)
            sums[name] = together(sums[name], one) if name in sums else one
        found = [
            ShareRow(
                name=name,
                requests=one.requests,
                answered=one.answered,
                rescued=one.rescued,
                **_used(one.usage),
            )
            for name, one in sums.items()
        ]
        return sorted(found, key=lambda one: (-one.requests, one.name))

    def _chain(self, chain: str, members: Sequence[str]) -> ChainStats:
        known = [name for name in members if name in self._backends]
        usable: list[Times] = []
        out: list[Times] = []
        for name in known:
            seen = [one for one in self._backends[name].spans if one.state != STOPPED]
            usable.append([one[:2] for one in seen if one.state in USABLE])
            out.append([one[:2] for one in seen if one.state not in USABLE])
        usable_s = _covered_s(joined.from_iterable(usable))
        together_out: Times = reduce(_common, out) if out else []
        out_s = _covered_s(together_out)
        return ChainStats(
            chain=chain,
            backends=tuple(known),
            seconds=round(usable_s + out_s, 3),
            availability=_share_of(usable_s, usable_s + out_s),
        )


Times = list[tuple[float, float]]
"""Beginnings and ends, in order, that do not overlap."""


def _covered_s(times: Iterable[tuple[float, float]]) -> float:
    """The time that is in at least one of these."""
    whole_s, reached_at = 0.0, float("-inf")
    for begin_at, end_at in sorted(times):
        whole_s += max(0.0, end_at - max(begin_at, reached_at))
        reached_at = max(reached_at, end_at)
    return whole_s


def _common(left: Times, right: Times) -> Times:
    """The times that are in both."""
    found, place = [], 0
    for begin_at, end_at in left:
        while place < len(right) and right[place][1] <= begin_at:
            place += 1
        at = place
        while at < len(right) and right[at][0] < end_at:
            found.append((max(begin_at, right[at][0]), min(end_at, right[at][1])))
            at += 1
    return found


def chains_of(policy: Policy) -> dict[str, list[str]]:
    """The backends that work may come to, by chain: its own first."""
    found = {}
    for chain, entries in policy.chains.items():
        names = [str(entry.backend) for entry in entries]
        own = [chain] if chain in policy.backends else []
        found[chain] = list(dict.fromkeys((*own, *names)))
    return found


async def stats(engine: "Engine", params: StatsParams, caller: Caller) -> StatsResult:
    now = engine.clock.now()
    until_at = min(now, now if params.until_at is None else params.until_at)
    since_at = until_at - WEEK_S if params.since_at is None else params.since_at
    if since_at >= until_at:
        raise ApiError("invalid_params", "since_at must lie before until_at, and before now")
    parts = Parts(since_at, until_at, params.buckets)
    report = Report(parts, chains_of(engine.settings.policy), now=now)
    running = [one.hour for one in engine.snapshot().meters.values() if one.hour is not None]

    def add_up(hours: Iterable[HourUse]) -> StatsResult:
        open_ones = {(one.hour, one.backend) for one in running}
        report.add_all(one for one in hours if (one.hour, one.backend) not in open_ones)
        report.add_all(running)
        return report.result()

    try:
        return await engine.store.hours(add_up, since_hour=hour_of(since_at))
    except StoreUnwritable as error:
        raise ApiError("busy", f"the records of the past cannot be read now: {error}") from error


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(STATS, stats, waits=True),)
