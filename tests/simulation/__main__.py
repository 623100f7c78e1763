"""Play one seed again: `python -m tests.simulation SEED [--sqlite] [--trace]`."""

import argparse
import sys

from tests.simulation.run import play, somewhere


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the number that decides everything")
    parser.add_argument("--sqlite", action="store_true", help="records in a file, not in memory")
    parser.add_argument("--trace", action="store_true", help="print what happens, with its time")
    asked = parser.parse_args()
    with somewhere() as place:
        played = play(asked.seed, place, sqlite=asked.sqlite)
    if asked.trace:
        print("\n".join(played.trace))
    for broken in played.broken:
        print(f"BROKEN: {broken}")
    print(
        f"seed {played.seed}: {played.delegations} delegations, {played.attempts} attempts, "
        f"{played.lives} lives, digest {played.digest[:16]}"
    )
    return 1 if played.broken else 0


if __name__ == "__main__":
    sys.exit(main())
