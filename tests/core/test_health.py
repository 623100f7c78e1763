"""The health machine: windows, counts, evidence, trials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.support.playbook import T0, fail

from fallbackd.core import health
from fallbackd.core.failures import Failure
from fallbackd.core.health import (
    Health,
    Outage,
    Pause,
    View,
    count_at,
    from_disk,
    is_leased,
    severity,
    shift,
    view,
    window_s,
)
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason, ReasonPolicy

SCOPE = ScopeId("backend:a")
BLIND = (Reason.TIMEOUT, Reason.STALLED, Reason.CRASH, Reason.UNKNOWN)
PASSING = (Reason.OVERLOADED, Reason.SERVER_ERROR, Reason.NETWORK)


def failed(
    record: Health | None,
    failure: Failure,
    *,
    at: float,
    started: float | str | None = "now",
    luck: float = 0.5,
    policy: ReasonPolicy | None = None,
) -> Health:
    """One failure at `at`; its attempt began a second before, where nothing else is said."""
    started_at = at - 1 if started == "now" else started
    assert not isinstance(started_at, str)
    return health.fail(
        record,
        SCOPE,
        failure,
        policy or REASONS[failure.reason],
        started_at=None if started_at is None else T0 + started_at,
        now=T0 + at,
        luck=luck,
    )


def length(record: Health, at: float) -> float:
    assert record.outage is not None
    assert record.outage.until_at is not None
    return record.outage.until_at - T0 - at


def outage_of(record: Health) -> Outage:
    assert record.outage is not None
    return record.outage


@pytest.mark.parametrize(
    ("reason", "window", "cooldown", "state"),
    [
        (Reason.RATE_LIMIT, 300, 600, "rate_limited"),
        (Reason.USAGE_LIMIT, 3600, 600, "rate_limited"),
        (Reason.OVERLOADED, 30, 0, "rate_limited"),
        (Reason.SERVER_ERROR, 30, 0, "rate_limited"),
        (Reason.NETWORK, 30, 0, "rate_limited"),
        (Reason.TIMEOUT, 60, 0, "rate_limited"),
        (Reason.STALLED, 60, 0, "rate_limited"),
        (Reason.CRASH, 60, 0, "rate_limited"),
        (Reason.UNKNOWN, 60, 0, "rate_limited"),
        (Reason.EMPTY_RESULT, 300, 0, "rate_limited"),
        (Reason.BILLING, 3600, 600, "broken"),
        (Reason.AUTH, 600, 0, "broken"),
        (Reason.NOT_INSTALLED, 600, 0, "broken"),
        (Reason.NOT_CONFIGURED, 600, 0, "broken"),
        (Reason.PERMISSION, 600, 0, "broken"),
        (Reason.TLS, 600, 0, "broken"),
        (Reason.MODEL_NOT_FOUND, 86_400, 0, "broken"),
        (Reason.MANUAL, 600, 0, "broken"),
    ],
)
@pytest.mark.parametrize("luck", [0.0, 0.999])
def test_the_first_window_of_a_reason_is_exact(
    reason: Reason, window: float, cooldown: float, state: str, luck: float
) -> None:
    record = failed(None, fail(reason), at=100, luck=luck)
    assert length(record, 100) == window
    assert outage_of(record).cooldown_s == cooldown
    assert view(record, now=T0 + 100).state == state
    assert outage_of(record).count == 1


@pytest.mark.parametrize(
    ("reasons", "windows"),
    [
        (BLIND, [60, 120, 240, 480, 600, 600]),
        (PASSING, [30, 60, 120, 240, 480, 600, 600]),
        ((Reason.RATE_LIMIT, Reason.EMPTY_RESULT), [300, 600, 1200, 2400, 3600, 3600]),
        ((Reason.USAGE_LIMIT,), [3600, 7200, 14400, 21600, 21600]),
        ((Reason.BILLING,), [3600, 3600, 3600]),
        ((Reason.AUTH,), [600, 600]),
    ],
)
def test_consecutive_failures_lengthen_the_window_to_its_ceiling(
    reasons: tuple[Reason, ...], windows: list[float]
) -> None:
    for reason in reasons:
        record: Health | None = None
        at, seen = 0.0, []
        for _ in windows:
            record = failed(record, fail(reason, at=at), at=at)
            seen.append(length(record, at))
            at += seen[-1] + outage_of(record).cooldown_s + 10
        assert seen == windows, reason


@given(count=st.integers(2, 12), luck=st.floats(0, 1, exclude_max=True))
def test_jitter_is_a_tenth_and_stays_within_the_ceiling(count: int, luck: float) -> None:
    policy = REASONS[Reason.RATE_LIMIT]
    plain = window_s(policy, count, luck=0.5)
    got = window_s(policy, count, luck=luck)
    assert plain * 0.9 - 1e-6 <= got <= min(plain * 1.1, policy.max_window_s) + 1e-6


def test_no_jitter_where_nothing_grows() -> None:
    assert window_s(REASONS[Reason.AUTH], 3, luck=0.0) == 600


@given(count=st.integers(1, 10_000))
def test_any_count_gives_a_window_within_the_ceiling(count: int) -> None:
    for policy in REASONS.values():
        assert policy.window_s * 0.9 <= window_s(policy, count, luck=0.0) <= policy.max_window_s


@pytest.mark.parametrize("stated", [5.0, 299.0, 301.0, 5000.0])
def test_a_stated_time_replaces_the_window_in_both_directions(stated: float) -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=stated), at=0)
    assert length(record, 0) == stated
    assert outage_of(record).source == "provider"
    later = failed(record, fail(Reason.RATE_LIMIT, at=2, wait_s=4), at=2)
    assert length(later, 2) == 4


@pytest.mark.parametrize("stated", [10.0, 1000.0])
def test_a_stated_time_replaces_a_window_of_ours(stated: float) -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    after = failed(record, fail(Reason.RATE_LIMIT, at=2, wait_s=stated), at=2)
    assert length(after, 2) == stated


def test_what_is_believed_of_a_stated_time_is_bounded() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=100_000), at=0)
    assert length(record, 0) == 6 * 3600
    assert outage_of(record).stated_reset_at == T0 + 100_000


def test_a_later_mark_never_shortens_a_window() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=5000), at=0)
    after = failed(record, fail(Reason.CRASH, at=100), at=100)
    assert outage_of(after).until_at == T0 + 5000
    assert outage_of(after).source == "provider"


def test_a_passing_failure_does_not_hide_what_needs_a_repair() -> None:
    record = failed(None, fail(Reason.AUTH), at=0)
    assert failed(record, fail(Reason.NETWORK, at=5), at=5) == record
    assert failed(record, fail(Reason.USAGE_LIMIT, at=5), at=5) == record


def test_a_failure_that_needs_a_repair_takes_over_from_a_passing_one() -> None:
    record = failed(None, fail(Reason.OVERLOADED), at=0)
    after = failed(record, fail(Reason.AUTH, at=5), at=5)
    assert view(after, now=T0 + 5).state == "broken"
    assert length(after, 5) == 600


def test_a_person_may_shorten_and_lengthen() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=5000), at=0)
    for ttl in (10.0, 1e9):
        marked = health.mark(
            record,
            SCOPE,
            REASONS[Reason.MANUAL],
            reason=Reason.MANUAL,
            detail="down",
            ttl_s=ttl,
            now=T0 + 50,
        )
        assert length(marked, 50) == ttl
        assert outage_of(marked).source == "person"


def test_no_policy_or_provider_shortens_what_a_person_said() -> None:
    record = health.mark(
        None,
        SCOPE,
        REASONS[Reason.MANUAL],
        reason=Reason.MANUAL,
        detail=None,
        ttl_s=5000,
        now=T0,
    )
    assert failed(record, fail(Reason.RATE_LIMIT, at=5, wait_s=10), at=5) == record


def test_an_imported_mark_shortens_nothing() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=5000), at=0)
    after = health.mark(
        record,
        SCOPE,
        REASONS[Reason.MANUAL],
        reason=Reason.MANUAL,
        detail="old",
        ttl_s=600,
        now=T0 + 10,
        source="import",
    )
    assert after == record


@given(
    first=st.sampled_from(sorted(REASONS)),
    stated=st.one_of(st.none(), st.integers(2, 5000)),
    later=st.lists(
        st.tuples(st.sampled_from(sorted(REASONS)), st.integers(0, 20), st.integers(0, 100)),
        min_size=1,
        max_size=15,
    ),
)
def test_failures_inside_a_window_extend_neither_the_window_nor_its_count(
    first: Reason, stated: int | None, later: list[tuple[Reason, int, int]]
) -> None:
    record = failed(None, fail(first, wait_s=stated), at=0)
    before = outage_of(record)
    is_repair = before.state == "broken"
    at = 0.0
    for reason, gap_s, age_s in later:
        at += gap_s
        if view(record, now=T0 + at).state != before.state:
            return
        if REASONS[reason].state == "broken" and not is_repair:
            continue  # what needs a repair takes over: see below
        record = failed(record, fail(reason, at=at), at=at, started=at - age_s)
        assert outage_of(record) == before


def test_a_time_that_is_stated_inside_a_window_counts() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    after = failed(record, fail(Reason.RATE_LIMIT, at=10, wait_s=1000), at=10)
    assert outage_of(after).until_at == T0 + 1010
    assert outage_of(after).count == 2


@pytest.mark.parametrize(
    ("stated", "cooldown"), [(None, 600), (2, 2), (299, 299), (300, 600), (5000, 600)]
)
def test_after_a_short_stated_time_the_cooldown_is_at_most_that(
    stated: float | None, cooldown: float
) -> None:
    record = failed(None, fail(Reason.RATE_LIMIT, wait_s=stated), at=0)
    assert outage_of(record).cooldown_s == cooldown


@pytest.mark.parametrize(("ttl", "cooldown"), [(None, 600), (5, 5), (299, 299), (300, 600)])
def test_a_short_mark_has_no_cooldown_longer_than_itself(
    ttl: float | None, cooldown: float
) -> None:
    policy = REASONS[Reason.RATE_LIMIT]
    record = health.mark(
        None, SCOPE, policy, reason=Reason.RATE_LIMIT, detail=None, ttl_s=ttl, now=T0
    )
    assert outage_of(record).cooldown_s == cooldown


@pytest.mark.parametrize(
    ("stated", "window", "cooldown"), [(1.4, 300, 600), (299, 300, 600), (301, 301, 600)]
)
def test_a_stated_time_that_proved_too_short_gives_way_to_the_policys_window(
    stated: float, window: float, cooldown: float
) -> None:
    failure = fail(Reason.RATE_LIMIT, wait_s=stated)
    record = health.fail(
        None,
        SCOPE,
        failure,
        REASONS[Reason.RATE_LIMIT],
        started_at=T0 - 1,
        now=T0,
        luck=0.5,
        repeated=True,
    )
    assert length(record, 0) == window
    assert outage_of(record).cooldown_s == cooldown


def test_ten_parallel_failures_are_one() -> None:
    record: Health | None = None
    for number in range(10):
        at = 100.0 + number
        record = failed(record, fail(Reason.CRASH, at=at), at=at, started=90)
    assert record is not None
    assert outage_of(record).count == 1
    assert outage_of(record).until_at == T0 + 160


def test_parallel_failures_that_nobody_can_date_are_one() -> None:
    record = failed(None, fail(Reason.CRASH), at=0, started=None)
    again = failed(record, fail(Reason.CRASH, at=1), at=1, started=None)
    assert outage_of(again).count == 1


def test_a_late_failure_after_the_window_does_not_count() -> None:
    record = failed(None, fail(Reason.CRASH), at=0)
    late = failed(record, fail(Reason.CRASH, at=500), at=500, started=-50)
    assert outage_of(late).count == 1


@pytest.mark.parametrize(("after_s", "count"), [(3599, 2), (3601, 1)])
def test_the_count_is_reset_an_hour_after_window_and_cooldown(after_s: float, count: int) -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    at = 300 + 600 + after_s
    assert outage_of(failed(record, fail(Reason.RATE_LIMIT, at=at), at=at)).count == count


def test_the_clock_leads_through_cooldown_to_healthy_and_unproven() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    states = [
        (at, seen.state, seen.unproven, None if seen.until_at is None else seen.until_at - T0)
        for at in (0, 299, 300, 301, 899, 900, 10**7)
        for seen in [view(record, now=T0 + at)]
    ]
    assert states == [
        (0, "rate_limited", False, 300),
        (299, "rate_limited", False, 300),
        (300, "cooldown", True, 900),
        (301, "cooldown", True, 900),
        (899, "cooldown", True, 900),
        (900, "healthy", True, None),
        (10**7, "healthy", True, None),
    ]


@pytest.mark.parametrize("at", [400.0, 950.0])
def test_success_after_the_window_makes_healthy(at: float) -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    after = health.succeed(record, started_at=T0 + at)
    assert view(after, now=T0 + at) == View(state="healthy")
    assert count_at(after, now=T0 + at) == 0


def test_success_of_an_attempt_from_before_the_mark_counts_for_nothing() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    assert health.succeed(record, started_at=T0 - 1) == record


def test_broken_ends_at_its_ttl() -> None:
    record = failed(None, fail(Reason.AUTH), at=0)
    assert view(record, now=T0 + 599).state == "broken"
    assert view(record, now=T0 + 600) == View(state="healthy", unproven=True)
    billing = failed(None, fail(Reason.BILLING), at=0)
    assert view(billing, now=T0 + 3600).state == "cooldown"


def test_a_revoked_credential_stays_broken() -> None:
    record = health.fail(
        None,
        SCOPE,
        fail(Reason.AUTH, detail="revoked"),
        REASONS[Reason.AUTH],
        started_at=T0,
        now=T0,
        luck=0.5,
        forever=True,
    )
    for reason in (Reason.NETWORK, Reason.AUTH):
        record = failed(record, fail(reason, at=5), at=5)
    assert view(record, now=T0 + 1e9).state == "broken"
    assert count_at(record, now=T0 + 1e9) >= 1
    assert view(health.clear(record), now=T0 + 5) == View(state="healthy")


def test_a_pause_covers_the_record_and_shows_it_again_afterwards() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    paused = structs.replace(record, pause=Pause(since_at=T0 + 1, note="x"))
    assert view(paused, now=T0 + 2).state == "paused"
    assert view(structs.replace(paused, pause=None), now=T0 + 2).state == "rate_limited"


def leased(record: Health, name: str, at: float, expires: float | None = None) -> Health:
    expires_at = None if expires is None else T0 + expires
    return health.lease(record, AttemptId(name), now=T0 + at, expires_at=expires_at)


def test_a_lease_carries_a_growing_generation_and_is_given_back_by_its_holder_only() -> None:
    record = failed(None, fail(Reason.CRASH), at=0)
    first = leased(record, "d1.1", 70)
    assert first.trial is not None
    assert health.release(first, AttemptId("d2.1")) == first
    second = leased(health.release(first, AttemptId("d1.1")), "d2.1", 71)
    assert second.trial is not None
    assert second.trial.generation > first.trial.generation


def test_a_failure_or_a_clear_voids_the_lease() -> None:
    record = leased(failed(None, fail(Reason.CRASH), at=0), "d1.1", 70)
    assert failed(record, fail(Reason.CRASH, at=71), at=71).trial is None
    assert health.clear(record).trial is None
    assert health.succeed(record, started_at=T0 + 70).trial is None


def test_the_lease_of_a_caller_runs_out() -> None:
    record = leased(failed(None, fail(Reason.CRASH), at=0), "lease-1", 70, expires=670)
    assert is_leased(record, now=T0 + 669)
    assert not is_leased(record, now=T0 + 670)


def early(record: Health) -> float | None:
    at = health.early_trial_at(record, last_resort_s=60)
    return None if at is None else at - T0


def test_an_early_trial_of_our_window_is_due_a_minute_after_the_last_attempt() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=0)
    assert early(record) == 60
    again = health.release(leased(record, "d1.1", 75), AttemptId("d1.1"))
    assert early(again) == 135


@pytest.mark.parametrize(
    ("stated_s", "later"),
    [(80_000, [7200, 14400, 28800]), (500_000, [6 * 3600, 86_400, 86_400])],
)
def test_early_trials_of_a_stated_time_come_later_and_later(
    stated_s: float, later: list[float]
) -> None:
    record = failed(None, fail(Reason.USAGE_LIMIT, wait_s=stated_s), at=0)
    assert early(record) == 3600
    dues = []
    at = 3600.0
    for _ in range(3):
        record = leased(record, "d1.1", at)
        record = failed(record, fail(Reason.USAGE_LIMIT, at=at, wait_s=stated_s - at), at=at + 1)
        due = early(record)
        assert due is not None
        dues.append(due - at - 1)
        at = due
    assert dues == later


@pytest.mark.parametrize("reason", [Reason.AUTH, Reason.BILLING, Reason.MANUAL])
def test_no_early_trial_of_what_needs_a_repair(reason: Reason) -> None:
    assert early(failed(None, fail(reason), at=0)) is None


def test_no_early_trial_of_a_budget_a_person_or_a_pause() -> None:
    assert early(failed(None, fail(Reason.LOCAL_BUDGET), at=0)) is None
    said = health.mark(
        None,
        SCOPE,
        REASONS[Reason.RATE_LIMIT],
        reason=Reason.RATE_LIMIT,
        detail=None,
        ttl_s=None,
        now=T0,
    )
    assert early(said) is None
    record = failed(None, fail(Reason.CRASH), at=0)
    assert early(structs.replace(record, pause=Pause(since_at=T0))) is None


@given(by_s=st.integers(-100_000, 100_000), at=st.integers(0, 2000))
def test_a_clock_step_moves_everything_alike(by_s: int, at: int) -> None:
    record = leased(failed(None, fail(Reason.RATE_LIMIT), at=0), "lease", 1, expires=601)
    moved = shift(record, by_s)
    here, there = view(record, now=T0 + at), view(moved, now=T0 + at + by_s)
    assert (here.state, here.unproven) == (there.state, there.unproven)
    assert is_leased(record, now=T0 + at) == is_leased(moved, now=T0 + at + by_s)
    assert shift(moved, -by_s) == record


def test_a_record_from_disk_has_no_lease_and_tells_its_age() -> None:
    record = leased(failed(None, fail(Reason.CRASH), at=0), "d1.1", 70)
    read = from_disk(record, now=T0 + 80)
    assert read.trial is None
    assert read.loaded_at == T0 + 80
    assert outage_of(read).since_at == T0


def test_a_trial_that_runs_still_keeps_its_lease_over_a_restart() -> None:
    record = leased(failed(None, fail(Reason.CRASH), at=0), "d1.1", 70)
    read = from_disk(record, now=T0 + 80, running={AttemptId("d1.1")})
    assert read.trial == record.trial
    assert from_disk(record, now=T0 + 80, running={AttemptId("d2.1")}).trial is None


def test_a_record_of_the_future_starts_anew_with_its_own_length() -> None:
    record = failed(None, fail(Reason.RATE_LIMIT), at=50_000)
    read = from_disk(record, now=T0)
    assert outage_of(read).since_at == T0
    assert outage_of(read).until_at == T0 + 300


def test_after_a_long_stop_our_own_windows_are_tried_and_stated_ones_stand() -> None:
    ours = failed(None, fail(Reason.USAGE_LIMIT), at=0, policy=ReasonPolicy(window_s=50_000))
    stated = failed(None, fail(Reason.USAGE_LIMIT, wait_s=50_000), at=0)
    now = T0 + 4000
    assert view(from_disk(ours, now=now, stopped_s=10), now=now).state == "rate_limited"
    tried = view(from_disk(ours, now=now, stopped_s=3600), now=now)
    assert (tried.state, tried.unproven) == ("healthy", True)
    kept = from_disk(stated, now=now, stopped_s=3600)
    assert view(kept, now=now).state == "rate_limited"


def test_worse_states_rank_higher() -> None:
    views = [
        View(state="healthy"),
        View(state="healthy", unproven=True),
        View(state="cooldown", unproven=True),
        View(state="rate_limited"),
        View(state="broken"),
        View(state="paused"),
    ]
    assert sorted(views, key=severity) == views
    assert len({severity(one) for one in views}) == len(views)


@given(
    data=st.lists(
        st.tuples(
            st.sampled_from(sorted(REASONS)),
            st.integers(0, 4000),
            st.one_of(st.none(), st.integers(1, 10_000)),
            st.floats(0, 1, exclude_max=True),
            st.integers(0, 600),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_only_a_provider_shortens(
    data: list[tuple[Reason, int, int | None, float, int]],
) -> None:
    record: Health | None = None
    at = 0.0
    for reason, gap, wait, luck, age in data:
        at += gap
        before = None if record is None or record.outage is None else record.outage.until_at
        record = failed(
            record, fail(reason, at=at, wait_s=wait), at=at, started=at - age, luck=luck
        )
        after = outage_of(record).until_at
        if before is not None and before > T0 + at and wait is None:
            assert after is None or after >= before
