import os
import resource

import pytest

from fallbackd.lib.descriptors import shortage


@pytest.fixture
def limit() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd")) + 200


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
