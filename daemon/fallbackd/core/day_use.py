"""What a backend was used for, by day (UTC): for the usage of a day, a week, a month."""

from collections.abc import Iterable

from fallbackd.core.protocol import Usage
from fallbackd.core.records import DayUse

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
