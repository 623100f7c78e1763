"""
The property tests with examples that nobody has tried, again and again.

`make test` tries the same examples each time, so that it fails for a change and never by chance.
"""

import os
import subprocess
import sys
import time
from random import SystemRandom


def run(seconds: float) -> int:
    """Look for about so long. Returns how many rounds failed; pytest says how to repeat one."""
    seed = int(os.environ.get("SOAK_SEED", 0)) or SystemRandom().randrange(10**9)
    until = time.monotonic() + seconds
    rounds = failed = 0
    while rounds == 0 or time.monotonic() < until:
        print(f"properties: seed {seed}", flush=True)
        failed += _round(seed) != 0
        rounds += 1
        seed += 1
    print(f"properties: {rounds} rounds, {failed} failed")
    return failed


def _round(seed: int) -> int:
    words = ("-m", "hypothesis", "--hypothesis-profile=explore", f"--hypothesis-seed={seed}")
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", *words, "tests")
    return subprocess.run(command, check=False).returncode
