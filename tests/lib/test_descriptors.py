import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fallbackd.lib.descriptors import FOR_ONE, KEPT, has_room, is_scarce, is_shortage, shortage


@pytest.fixture
def limit() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd")) + 200


@pytest.fixture
def full(limit: int) -> Iterator[list[int]]:
    """All descriptors that the process may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def free(taken: list[int], count: int) -> None:
    for _ in range(count):
        os.close(taken.pop())


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (OSError(errno.ENFILE, "x"), True),
        (OSError(errno.ENOBUFS, "x"), True),
        (OSError(errno.ENOSPC, "x"), True),
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ECONNREFUSED, "x"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_what_this_machine_has_run_short_of_is_known_by_its_error(
    error: Exception, *, is_ours: bool
) -> None:
    assert is_shortage(error) is is_ours


def test_the_last_ones_are_kept_for_running_work(full: list[int]) -> None:
    assert is_scarce()
    assert not has_room()
    free(full, FOR_ONE)
    assert is_scarce()  # the next caller would take one of them
    assert has_room()
    free(full, 1)
    assert not is_scarce()


def test_attempts_that_begin_count_as_if_they_had_theirs(full: list[int]) -> None:
    free(full, FOR_ONE + KEPT)
    assert has_room(1)
    assert not has_room(2)
    free(full, 64)
    assert shortage() is None
    assert shortage(20) is not None


def test_enough_is_no_shortage_and_few_left_are(limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    taken: list[int] = []
    try:
        assert shortage() is None
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        # Not even the one that it takes to count them.
        assert shortage() == f"{limit} of {limit} file descriptors are in use"
        for handle in taken[:3]:
            os.close(handle)
        del taken[:3]
        told = shortage()
        assert told is not None
        assert told.endswith(f"of {limit} file descriptors are in use")
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert shortage() is None
