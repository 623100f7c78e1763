"""What is counted of a backend within the last hour."""

from fallbackd.core import meter
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Meter

A = BackendId("a")
HOUR_AT = 3600.0 * 500_000


def started(times: int, at: float, before: Meter | None = None) -> Meter:
    found = before
    for _ in range(times):
        found = meter.started(found, A, now=HOUR_AT + at)
    assert found is not None
    return found


def test_attempts_count_for_an_hour() -> None:
    found = started(3, 0)
    assert meter.attempts_in_hour(found, now=HOUR_AT + 3599) == 3
    assert meter.attempts_in_hour(found, now=HOUR_AT + 3661) == 0


def test_a_cap_is_over_when_it_is_reached_and_says_until_when() -> None:
    found = started(2, 0, None)
    found = started(3, 600, found)
    assert meter.over_cap_until(found, 6, now=HOUR_AT + 700) is None
    until_at = meter.over_cap_until(found, 5, now=HOUR_AT + 700)
    assert until_at is not None
    assert meter.over_cap_until(found, 5, now=until_at - 1) == until_at
    assert meter.over_cap_until(found, 5, now=until_at) is None
    assert 3600 <= until_at - HOUR_AT <= 3660


def test_the_time_told_is_the_one_at_which_enough_has_passed() -> None:
    found = started(3, 600, started(2, 0))
    until_at = meter.over_cap_until(found, 2, now=HOUR_AT + 700)
    assert until_at is not None
    assert meter.over_cap_until(found, 2, now=until_at - 1) is not None
    assert meter.over_cap_until(found, 2, now=until_at) is None


def test_a_cap_of_tokens_counts_tokens() -> None:
    found = meter.used(started(1, 0), A, Usage(input_tokens=60, output_tokens=50), now=HOUR_AT + 5)
    assert meter.over_cap_until(found, 100, now=HOUR_AT + 6, unit="tokens") is not None
    assert meter.over_cap_until(found, 100, now=HOUR_AT + 6) is None
    assert meter.tokens_in_hour(found, now=HOUR_AT + 6) == 110


def test_no_cap_is_never_over() -> None:
    assert meter.over_cap_until(started(50, 0), None, now=HOUR_AT) is None
    assert meter.over_cap_until(None, 1, now=HOUR_AT) is None


def test_totals_add_up_and_an_unknown_cost_adds_nothing() -> None:
    found = meter.used(None, A, Usage(input_tokens=1, cost_usd=0.5), now=HOUR_AT)
    found = meter.used(found, A, Usage(output_tokens=2), now=HOUR_AT)
    assert found.totals == Usage(input_tokens=1, output_tokens=2, cost_usd=0.5)


def test_what_an_hour_has_cost_is_kept_by_minute_and_no_longer() -> None:
    found = meter.used(None, A, Usage(input_tokens=1, output_tokens=2, cost_usd=0.5), now=HOUR_AT)
    found = meter.used(found, A, Usage(input_tokens=4, cost_usd=0.25), now=HOUR_AT + 59)
    found = meter.used(found, A, Usage(output_tokens=8), now=HOUR_AT + 1800)
    assert len(found.spent) == 2
    whole = Usage(input_tokens=5, output_tokens=10, cost_usd=0.75)
    assert meter.spent_since(found, HOUR_AT + 30) == whole
    assert meter.spent_since(found, HOUR_AT + 60) == Usage(output_tokens=8)
    assert meter.spent_since(meter.shift(found, -600), HOUR_AT - 570) == whole
    found = meter.used(found, A, Usage(input_tokens=16), now=HOUR_AT + 5000)
    assert [one[1:] for one in found.spent] == [(0, 8, None), (16, 0, None)]
    assert found.totals.cost_usd == 0.75


def test_measured_times_correct_the_estimate_and_old_ones_fade() -> None:
    assert meter.eta_factor(None) == 1.0
    found = Meter(backend=A)
    for _ in range(100):
        found = meter.timed(found, actual_s=600, estimate_s=300)
    assert abs(meter.eta_factor(found) - 2.0) < 1e-9
    for _ in range(100):
        found = meter.timed(found, actual_s=300, estimate_s=300)
    assert 1.0 <= meter.eta_factor(found) < 1.05


def test_one_measurement_counts_within_bounds() -> None:
    found = meter.timed(Meter(backend=A), actual_s=1e9, estimate_s=1)
    assert meter.eta_factor(found) == 10.0
    assert meter.eta_factor(meter.timed(Meter(backend=A), actual_s=0, estimate_s=10)) == 0.1


def test_attempts_that_ended_are_counted_for_the_hour_and_for_ever() -> None:
    found = None
    for state, at in (("failed", 0), ("succeeded", 3000), ("cancelled", 3010), ("failed", 4000)):
        found = meter.ended(found, A, state, now=HOUR_AT + at)
    assert found is not None
    assert (found.attempts, found.successes, found.failures) == (4, 1, 2)
    assert [one[1:] for one in found.ends] == [(1, 0), (0, 1)]
    assert meter.shift(found, -600).ends[-1][0] == found.ends[-1][0] - 10


def test_a_clock_that_is_set_back_keeps_what_was_counted() -> None:
    found = meter.shift(started(5, 0), -86_400)
    assert meter.attempts_in_hour(found, now=HOUR_AT - 86_400) == 5
