"""
Run the long tests one after the other and say what they did.

    SOAK_S=1800 python -m tests.soak [PART …]

`SOAK_S` is for all parts together, and is shared out among those that run. Each part prints the
seed that it began with, and `SOAK_SEED=N` begins with that one. The exit status is 0 where
everything held, and each part had the time for what it is meant to do.
"""

import importlib
import importlib.util
import os
import sys
import time

SHARES = {"kills": 15, "fuzz": 12, "simulation": 3, "properties": 3, "sharing": 3}
"""
Of the time, by part: of half an hour 750, 600 and three times 150 s. Each is a module with
`run(seconds: float) -> int`, which returns how many problems it found; too little time for what it
is meant to do is one.
"""
DEFAULT_S = 1800.0


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in SHARES]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(SHARES)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("needs root: the daemon hides what it holds open from its user", file=sys.stderr)
        return 2
    parts = wanted or list(SHARES)
    all_s = float(os.environ.get("SOAK_S", DEFAULT_S))
    of_all = sum(SHARES[name] for name in parts)
    problems = 0
    for name in parts:
        if importlib.util.find_spec(f"tests.soak.{name}") is None:
            print(f"{name}: it is not here", flush=True)
            problems += 1
            continue
        share_s = all_s * SHARES[name] / of_all
        print(f"{name}: up to {share_s:.0f} s", flush=True)
        begun = time.monotonic()
        found = importlib.import_module(f"tests.soak.{name}").run(share_s)
        verdict = "everything held" if not found else f"{found} problems"
        print(f"{name}: {verdict}, {time.monotonic() - begun:.0f} s", flush=True)
        problems += found
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
