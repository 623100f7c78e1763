import subprocess
import sys

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
