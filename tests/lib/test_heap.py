import subprocess
import sys

import pytest

from fallbackd.lib import heap

GROW_AND_SHRINK = """
from fallbackd.lib import heap

def resident_kib():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1])

heap.keep_large_blocks_apart()
kept = []
before = resident_kib()
for _ in range(50):
    large = [bytes(1_000_000) for _ in range(20)]
    kept.append(bytes(2000))
    del large
heap.trim()
print(resident_kib() - before)
"""


def test_large_blocks_between_small_ones_are_given_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GROW_AND_SHRINK], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 5000


@pytest.mark.parametrize(
    ("counts", "left_at"),
    [
        ([0, 100, 100, 0, 0, 0], [4]),  # not while they leave: the rest would stay
        ([100, 40, 3, 3, 3], [3]),
        ([100, 20, 30], [2]),
        ([40, 0, 0], []),
        ([100, 60, 60, 0, 0], [4]),
        ([100, 0, 0, 100, 0, 0], [2, 5]),
    ],
)
def test_a_crowd_has_left_when_no_more_are_leaving(counts: list[int], left_at: list[int]) -> None:
    crowd = heap.Crowd(50)
    assert [at for at, count in enumerate(counts) if crowd.has_left(count)] == left_at
