"""Use of a backend: within the last hour, by day (UTC), and how its work was timed."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from fallbackd.core import history
from fallbackd.core.figures import Figure, Figures, shifted
from fallbackd.core.history import HourUse, Share
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.protocol import Usage
from fallbackd.core.records import DayUse, Meter

HOUR_MIN = 60
DEMAND_MIN = 2
"""Minutes that the budget of further attempts looks at, the current one included."""
MAX_WEIGHT = 20.0
"""Older measurements fade: the sum of ratios never weighs more than this many."""


def started(meter: Meter | None, backend: BackendId, *, now: float) -> Meter:
    return _add(meter or Meter(backend=backend), attempts=1, tokens=0, now=now)


def demanded(meter: Meter | None, backend: BackendId, *, is_first: bool, now: float) -> Meter:
    """Count an attempt as the first of its delegation, or as a further one."""
    base = meter or Meter(backend=backend)
    minute = int(now // 60)
    recent = [one for one in base.demand if minute - DEMAND_MIN < one[0] <= minute]
    before = recent.pop() if recent and recent[-1][0] == minute else (minute, 0, 0)
    first, further = before[1] + int(is_first), before[2] + int(not is_first)
    return structs.replace(base, demand=(*recent, (minute, first, further)))


def demand(meters: Iterable[Meter], *, now: float) -> tuple[int, int]:
    """First and further attempts of all backends within the last minutes."""
    minute = int(now // 60)
    firsts = furthers = 0
    for each in meters:
        for at, first, further in each.demand:
            if minute - DEMAND_MIN < at <= minute:
                firsts += first
                furthers += further
    return firsts, furthers


def chose(meter: Meter | None, backend: BackendId, credential: str) -> Meter:
    """Count a call that a credential was chosen for."""
    base = meter or Meter(backend=backend)
    counts = dict(base.credential_uses)
    counts[credential] = counts.get(credential, 0) + 1
    return structs.replace(base, credential_uses=tuple(counts.items()), last_credential=credential)


def used(meter: Meter | None, backend: BackendId, usage: Usage, *, now: float) -> Meter:
    base = meter or Meter(backend=backend)
    tokens = usage.input_tokens + usage.output_tokens
    return structs.replace(
        _add(base, attempts=0, tokens=tokens, now=now),
        totals=base.totals + usage,
        spent=_spent(base, usage, minute=int(now // 60)),
    )


def _spent(
    meter: Meter, usage: Usage, *, minute: int
) -> tuple[tuple[int, int, int, float | None], ...]:
    rest = [one for one in meter.spent if minute - HOUR_MIN <= one[0] <= minute]
    before = rest.pop() if rest and rest[-1][0] == minute else (minute, 0, 0, None)
    made = _usage_of(before) + usage
    return (*rest, (minute, made.input_tokens, made.output_tokens, made.cost_usd))


def _usage_of(spent: tuple[int, int, int, float | None]) -> Usage:
    _, input_tokens, output_tokens, cost_usd = spent
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd)


def spent_since(meter: Meter, begin_at: float) -> Usage:
    """Return the usage since `begin_at`, to the minute; at most one hour is kept."""
    recent = (one for one in meter.spent if (one[0] + 1) * 60.0 > begin_at)
    return sum(map(_usage_of, recent), Usage())


def ended(meter: Meter | None, backend: BackendId, state: str, *, now: float) -> Meter:
    """
    Count an attempt that has ended.

    Args:
        state: `succeeded`, `failed`, or another one, which is neither.
    """
    base = meter or Meter(backend=backend)
    success, failure = int(state == "succeeded"), int(state == "failed")
    minute = int(now // 60)
    ends = [one for one in base.ends if minute - HOUR_MIN <= one[0] <= minute]
    before = ends.pop() if ends and ends[-1][0] == minute else (minute, 0, 0)
    return structs.replace(
        base,
        ends=(*ends, (minute, before[1] + success, before[2] + failure)),
        attempts=base.attempts + 1,
        successes=base.successes + success,
        failures=base.failures + failure,
    )


def timed(meter: Meter, *, actual_s: float, estimate_s: float) -> Meter:
    """Remember one measured time against its estimate. Ratios are kept within 0.1 to 10."""
    total, weight = meter.ratios
    ratio = min(10.0, max(0.1, actual_s / estimate_s))
    if weight >= MAX_WEIGHT:
        total, weight = total * (MAX_WEIGHT - 1) / weight, MAX_WEIGHT - 1
    return structs.replace(meter, ratios=(total + ratio, weight + 1))


def eta_factor(meter: Meter | None) -> float:
    """Return the factor of an estimate; 1.0 before anything was measured."""
    if meter is None or meter.ratios[1] == 0:
        return 1.0
    total, weight = meter.ratios
    return total / weight


def attempts_in_hour(meter: Meter | None, *, now: float) -> int:
    return sum(count for _, count, _ in _recent(meter, now=now))


def tokens_in_hour(meter: Meter | None, *, now: float) -> int:
    return sum(tokens for _, _, tokens in _recent(meter, now=now))


def over_cap_until(
    meter: Meter | None, cap: int | None, *, now: float, unit: str = "requests"
) -> float | None:
    """
    Return when the local budget has room again; None while it has.

    Args:
        unit: What is counted: "tokens", else attempts.
    """
    if cap is None or meter is None:
        return None
    recent = [(one[0], one[2 if unit == "tokens" else 1]) for one in _recent(meter, now=now)]
    left = sum(count for _, count in recent)
    if left < cap:
        return None
    for minute, count in recent:
        left -= count
        if left < cap:
            return (minute + HOUR_MIN + 1) * 60.0
    return now + HOUR_MIN * 60.0


def shift(meter: Meter, by_s: float) -> Meter:
    """Move what was counted: the wall clock was set by `by_s` seconds."""
    minutes = round(by_s / 60)
    starts = tuple((minute + minutes, count, tokens) for minute, count, tokens in meter.starts)
    ends = tuple((minute + minutes, good, bad) for minute, good, bad in meter.ends)
    demand = tuple((minute + minutes, one, more) for minute, one, more in meter.demand)
    spent = tuple((one[0] + minutes, *one[1:]) for one in meter.spent)
    answered_at = None if meter.answered_at is None else meter.answered_at + by_s
    return structs.replace(
        meter,
        starts=starts,
        ends=ends,
        demand=demand,
        spent=spent,
        answered_at=answered_at,
        figures=shifted(meter.figures, by_s),
    )


def _recent(meter: Meter | None, *, now: float) -> list[tuple[int, int, int]]:
    if meter is None:
        return []
    minute = int(now // 60)
    return [one for one in meter.starts if minute - HOUR_MIN <= one[0] <= minute]


def _add(meter: Meter, *, attempts: int, tokens: int, now: float) -> Meter:
    minute = int(now // 60)
    rest = _recent(meter, now=now)
    if rest and rest[-1][0] == minute:
        last = rest.pop()
        attempts += last[1]
        tokens += last[2]
    return structs.replace(meter, starts=(*rest, (minute, attempts, tokens)))


# The use of a backend by day (UTC): for the usage of a day, a week, a month.


DAY_S = 86_400.0
KEPT_DAYS = 31


def day_of(at: float) -> int:
    return int(at // DAY_S)


def added(
    days: tuple[DayUse, ...], *, now: float, state: str | None = None, usage: Usage | None = None
) -> tuple[DayUse, ...]:
    """
    Count something that has happened today.

    Args:
        state: How an attempt has ended; None: none has.
    """
    today = day_of(now)
    rest = [one for one in days if today - KEPT_DAYS < one.day <= today]
    before = rest.pop() if rest and rest[-1].day == today else DayUse(day=today)
    after = DayUse(
        day=today,
        attempts=before.attempts + (state is not None),
        successes=before.successes + (state == "succeeded"),
        failures=before.failures + (state == "failed"),
        usage=before.usage if usage is None else before.usage + usage,
    )
    return (*rest, after)


def together(days: Iterable[DayUse], *, from_day: int) -> DayUse:
    """The sum of the days from `from_day` on."""
    whole = DayUse(day=from_day)
    for one in days:
        if one.day >= from_day:
            whole = _joined(whole, one)
    return whole


def _joined(left: DayUse, right: DayUse) -> DayUse:
    return DayUse(
        day=left.day,
        attempts=left.attempts + right.attempts,
        successes=left.successes + right.successes,
        failures=left.failures + right.failures,
        usage=left.usage + right.usage,
    )


# Counts of one decision: the meters as they are by now, and which of them it has changed.


class Meters(dict[BackendId, Meter]):
    """Read as a mapping; every method that counts keeps the meter it changes for `changed`."""

    def __init__(self, known: Mapping[BackendId, Meter], *, now: float) -> None:
        super().__init__(known)
        self._now = now
        self._changed: dict[BackendId, None] = {}
        self.over: list[HourUse] = []
        """Hours that were found to be over."""

    def put(self, used: Meter) -> None:
        self[used.backend] = used
        self._changed[used.backend] = None

    @property
    def changed_names(self) -> tuple[BackendId, ...]:
        return tuple(self._changed)

    def changed(self) -> Iterator[Meter]:
        return (self[backend] for backend in self._changed)

    def hour(self, backend: BackendId) -> HourUse:
        """The running hour of a backend. What is counted under a clock set back counts in it."""
        before = None if (used := self.get(backend)) is None else used.hour
        if before is not None and before.hour >= history.hour_of(self._now):
            return before
        if before is not None:
            self.over.append(before)
        one = history.begun(backend, before, now=self._now)
        self.put_hour(one)
        return one

    def put_hour(self, one: HourUse) -> None:
        self.put(structs.replace(self.get(one.backend) or Meter(backend=one.backend), hour=one))

    def close_hours(self) -> None:
        for backend in [name for name, used in self.items() if used.hour is not None]:
            self.hour(backend)

    def count_stop(self, at: float) -> None:
        """No daemon ran since `at`: what is known begins anew."""
        for used in list(self.values()):
            if used.hour is not None:
                began_at = used.hour.moves[-1].at + history.INSTANT_S
                stop = history.moved(used.hour, history.STOPPED, None, at=max(at, began_at))
                self.put_hour(stop)

    def count_hop(self, backend: BackendId, to: BackendId, reason: str) -> None:
        if backend != to:
            self.put_hour(history.hopped(self.hour(backend), to, reason))

    def count_share(self, backend: BackendId, share: Share) -> None:
        self.put_hour(history.shared(self.hour(backend), share))

    def count_start(self, backend: BackendId, *, is_first: bool) -> None:
        """A call is made now. Those beyond the first share the budget of the host for retries."""
        used = started(self.get(backend), backend, now=self._now)
        self.put(demanded(used, backend, is_first=is_first, now=self._now))

    def count_credential(self, backend: BackendId, credential: str | None) -> None:
        if credential is not None:
            self.put(chose(self.get(backend), backend, credential))

    def count_usage(self, backend: BackendId, usage: Usage) -> None:
        if usage == Usage():
            return
        after = used(self.get(backend), backend, usage, now=self._now)
        self.put(structs.replace(after, days=added(after.days, now=self._now, usage=usage)))
        one = self.hour(backend)
        self.put_hour(structs.replace(one, usage=one.usage + usage))

    def count_answer(self, backend: BackendId) -> None:
        """The provider has answered just now."""
        used = self.get(backend) or Meter(backend=backend)
        self.put(structs.replace(used, answered_at=self._now))

    def count_end(
        self,
        backend: BackendId,
        state: str,
        *,
        reason: str | None = None,
        started_at: float | None = None,
    ) -> None:
        after = ended(self.get(backend), backend, state, now=self._now)
        days = added(after.days, now=self._now, state=state)
        self.put(structs.replace(after, days=days))
        took_s = None if started_at is None else self._now - started_at
        self.put_hour(history.called(self.hour(backend), state, reason, took_s))

    def count_time(self, backend: BackendId, *, actual_s: float, estimate_s: float) -> None:
        base = self.get(backend) or Meter(backend=backend)
        self.put(timed(base, actual_s=actual_s, estimate_s=estimate_s))


def figures_of(backend: Backend, policy: Policy, meters: Mapping[BackendId, Meter]) -> Figures:
    """Its own, and those of the plan that it shares with other backends; the latest of each."""
    found: dict[object, Figure] = {}
    for name, one in policy.backends.items():
        is_own = name == backend.id
        is_shared = backend.quota is not None and one.quota == backend.quota
        if (is_own or is_shared) and (meter := meters.get(name)) is not None:
            for each in meter.figures:
                is_meant = is_own or (each.credential is None and each.model is None)
                before = found.get(each.place)
                if is_meant and (before is None or before.at < each.at):
                    found[each.place] = each
    return tuple(found.values())
