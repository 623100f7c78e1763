"""Usage by day: what a day, a week and a month come to."""

from fallbackd.core.meter import DAY_S, KEPT_DAYS, added, day_of, together
from fallbackd.core.protocol import Usage
from fallbackd.core.records import DayUse

NOON = 20_000.5 * DAY_S


def test_what_happens_on_one_day_is_one_entry() -> None:
    days: tuple[DayUse, ...] = ()
    for state in ("succeeded", "failed", "cancelled"):
        days = added(days, now=NOON, state=state)
    days = added(days, now=NOON + 3600, usage=Usage(input_tokens=5, output_tokens=2, cost_usd=0.5))
    [one] = days
    assert (one.day, one.attempts, one.successes, one.failures) == (20_000, 3, 1, 1)
    assert one.usage == Usage(input_tokens=5, output_tokens=2, cost_usd=0.5)


def test_a_week_is_the_sum_of_its_days() -> None:
    days: tuple[DayUse, ...] = ()
    for number in range(10):
        days = added(days, now=NOON + number * DAY_S, state="succeeded")
    today = day_of(NOON) + 9
    assert together(days, from_day=today).attempts == 1
    assert together(days, from_day=today - 6).attempts == 7


def test_a_month_is_kept_and_no_more() -> None:
    days: tuple[DayUse, ...] = ()
    for number in range(100):
        days = added(days, now=NOON + number * DAY_S, state="failed")
    assert len(days) == KEPT_DAYS


def test_a_clock_that_was_set_back_counts_nothing_of_the_future() -> None:
    days = added((), now=NOON + 5 * DAY_S, state="failed")
    assert [one.day for one in added(days, now=NOON, state="failed")] == [20_000]
