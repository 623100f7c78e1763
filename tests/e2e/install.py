"""
Puts the agent CLIs of `package.json` into `.e2e/`: `python -m tests.e2e.install`.

Does nothing when `.e2e/` already holds what the lock file names. Ends with a sentence and status 1
when node or npm is missing; the tests never skip for want of a CLI.

With `FALLBACKD_E2E=newest` the place is `.e2e-newest/`, and what npm calls the latest version of
each is installed there anew, without a lock: what users will have tomorrow.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
IS_NEWEST = os.environ.get("FALLBACKD_E2E") == "newest"
PLACE = HERE.parents[1] / (".e2e-newest" if IS_NEWEST else ".e2e")
LOCK = "package-lock.json"
FILES = ("package.json", LOCK, ".npmrc")
STAMP = "installed"
BIN = PLACE / "node_modules" / ".bin"


def wanted() -> str:
    if IS_NEWEST:
        return "newest"
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def is_installed() -> bool:
    stamp = PLACE / STAMP
    return stamp.is_file() and stamp.read_text() == wanted()


def install() -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not on PATH; the end-to-end tests need Node.js 20")
    PLACE.mkdir(exist_ok=True)
    (PLACE / STAMP).unlink(missing_ok=True)
    for name in FILES:
        shutil.copyfile(HERE / name, PLACE / name)
    if IS_NEWEST:
        (PLACE / LOCK).unlink()
        pinned = json.loads((HERE / "package.json").read_text())["dependencies"]
        _npm("install", "--save-exact", *(f"{name}@latest" for name in pinned))
        _say_versions(pinned)
    else:
        _npm("ci")
    (PLACE / STAMP).write_text(wanted())


def _npm(*words: str) -> None:
    command = ["npm", *words, "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=PLACE, check=False)
    if done.returncode:
        raise SystemExit(f"npm {words[0]} ended with {done.returncode} in {PLACE}")


def _say_versions(pinned: Mapping[str, str]) -> None:
    found = json.loads((PLACE / "package.json").read_text())["dependencies"]
    for name, version in pinned.items():
        change = "as pinned" if found[name] == version else f"pinned: {version}"
        sys.stdout.write(f"{name} {found[name]} ({change})\n")


if __name__ == "__main__":
    if is_installed() and not IS_NEWEST:
        sys.stdout.write(f"{PLACE.name}/ is up to date\n")
    else:
        install()
