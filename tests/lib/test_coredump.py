import subprocess
import sys

LOOK = """
import ctypes, resource
from fallbackd.lib import heap
resource.setrlimit(resource.RLIMIT_CORE, (1024, resource.getrlimit(resource.RLIMIT_CORE)[1]))
before = heap.forbid_core_dumps()
print(before, resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""
PR_GET_DUMPABLE = 3


def test_a_process_that_forbids_it_has_no_core_and_is_not_dumpable() -> None:
    ran = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1024", "0", "0"]
