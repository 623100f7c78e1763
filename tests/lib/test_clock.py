"""Time advances as elapsed time does; a wall clock that was set is told apart."""

import time

import pytest

from fallbackd.lib.clock import SystemClock
from fallbackd.ports.transport import Clock


class Machine:
    """A wall clock and a count of elapsed seconds, set by hand."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.elapsed_s = 1000.0
        self.awake_s = 900.0

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.elapsed_s += seconds
        self.awake_s += seconds

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds
        self.elapsed_s += seconds

    def clock(self, offset_s: float | None = None) -> SystemClock:
        return SystemClock(
            offset_s=offset_s,
            wall=lambda: self.wall_s,
            elapsed=lambda: self.elapsed_s,
            awake=lambda: self.awake_s,
        )


def test_now_is_unix_time() -> None:
    clock: Clock = SystemClock()
    assert clock.now() == pytest.approx(time.time(), abs=30)
    assert clock.step() == 0.0


def test_sleep_is_told_once_and_time_goes_on_with_it() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_(100)
    assert clock.slept() == 0.0
    machine.sleep(3600)
    machine.pass_(1)
    assert clock.slept() == 3600.0
    assert clock.slept() == 0.0
    assert clock.now() == 1_700_003_701.0
    machine.sleep(2)
    assert clock.slept() == 0.0, "too short to be noticed"


def test_now_follows_elapsed_time() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_(3600)
    assert clock.now() == 1_700_003_600.0
    assert clock.step() == 0.0


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0, 61.0, -61.0])
def test_a_clock_that_was_set_moves_now_only_at_the_step_that_tells_it(jump_s: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_(10)
    machine.wall_s += jump_s
    assert clock.now() == 1_700_000_010.0
    assert clock.step() == jump_s
    assert clock.now() == 1_700_000_010.0 + jump_s
    assert clock.step() == 0.0


@pytest.mark.parametrize("jump_s", [59.0, -59.0, 60.0])
def test_a_small_correction_changes_nothing(jump_s: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_s += jump_s
    assert clock.step() == 0.0
    assert clock.now() == 1_700_000_000.0


def test_a_clock_that_was_set_between_two_runs_of_one_boot_is_noticed() -> None:
    machine = Machine()
    offset_s = machine.clock().offset_s
    machine.pass_(100)
    machine.wall_s -= 7200
    later = machine.clock(offset_s)
    assert later.now() == 1_700_000_100.0
    assert later.step() == -7200


def test_the_boot_has_a_name_that_stays() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id()
