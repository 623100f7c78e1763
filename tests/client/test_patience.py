import pytest

from fallbackd_client.calls import Patience, what_is_left


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_daemon_that_does_not_come_back_is_given_up_after_the_stated_time() -> None:
    time = Time()
    patience = Patience(10.0, time)
    patience.connected()
    tries = 0
    while patience.lost():
        tries += 1
        time.now += patience.pause_s()
    assert 110.0 <= time.now < 111.5
    assert 10 < tries < 40


def test_pauses_grow_and_stay_below_a_second() -> None:
    patience = Patience(10.0, Time())
    pauses = [patience.pause_s() for _ in range(12)]
    assert pauses[0] <= 0.05
    assert all(0.5 <= pause <= 1.0 for pause in pauses[6:])


def test_a_daemon_that_dies_each_time_at_once_is_given_up() -> None:
    time = Time()
    patience = Patience(10.0, time)
    deaths = 0
    while patience.lost():
        deaths += 1
        time.now += patience.pause_s()
        patience.connected()
        time.now += 2.0
    assert deaths < 10


def test_a_call_outlives_any_number_of_restarts_that_lie_apart() -> None:
    time = Time()
    patience = Patience(10.0, time)
    for _ in range(50):
        patience.connected()
        time.now += 3600.0
        assert patience.lost()
        assert patience.pause_s() <= 0.05, "each is a trouble of its own"
        time.now += 9.0


@pytest.mark.parametrize(
    ("method", "params", "left"),
    [
        ("delegation.wait", {"delegation": "d", "timeout_s": 30}, {"timeout_s": 25.0}),
        ("delegation.wait", {"delegation": "d", "timeout_s": 3}, {"timeout_s": 0.0}),
        ("delegation.wait", {"delegation": "d"}, {}),
        ("delegate", {"wait_s": 30, "settle_s": 8.5}, {"wait_s": 25.0, "settle_s": 3.5}),
        ("delegate", {"wait_s": None, "timeout_s": 30}, {}),
        ("status", {"timeout_s": 30}, {}),
    ],
)
def test_a_repeated_wait_is_as_long_as_is_left_of_it(
    method: str, params: dict[str, object], left: dict[str, float]
) -> None:
    assert what_is_left(method, params, 5.0) == {**params, **left}
