"""
Run the long tests one after the other and say what they did.

    SOAK_S=900 python -m tests.soak [PART …]

`SOAK_S` is for all parts together. Each part prints the seed that it began with, and
`SOAK_SEED=N` begins with that one. The exit status is 0 where everything held.
"""

import importlib
import importlib.util
import os
import sys
import time

PARTS = ("kills", "fuzz", "simulation")
"""Each is a module with `run(seconds: float) -> int`, which returns how many problems it found."""
DEFAULT_S = 900.0


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    parts = wanted or list(PARTS)
    share_s = float(os.environ.get("SOAK_S", DEFAULT_S)) / len(parts)
    problems = 0
    for name in parts:
        if importlib.util.find_spec(f"tests.soak.{name}") is None:
            print(f"{name}: it is not here", flush=True)
            problems += 1
            continue
        print(f"{name}: up to {share_s:.0f} s", flush=True)
        begun = time.monotonic()
        found = importlib.import_module(f"tests.soak.{name}").run(share_s)
        verdict = "everything held" if not found else f"{found} problems"
        print(f"{name}: {verdict}, {time.monotonic() - begun:.0f} s", flush=True)
        problems += found
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
