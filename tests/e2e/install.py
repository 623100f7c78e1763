"""
Puts the agent CLIs of `package.json` into `.e2e/`: `python -m tests.e2e.install`.

Does nothing when `.e2e/` already holds what the lock file names. Ends with a sentence and status 1
when node or npm is missing; the tests never skip for want of a CLI.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = HERE.parents[1] / ".e2e"
FILES = ("package.json", "package-lock.json", ".npmrc")
STAMP = "installed"
BIN = PLACE / "node_modules" / ".bin"


def wanted() -> str:
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
    for name in FILES:
        shutil.copyfile(HERE / name, PLACE / name)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=PLACE, check=False)
    if done.returncode:
        raise SystemExit(f"npm ci ended with {done.returncode} in {PLACE}")
    (PLACE / STAMP).write_text(wanted())


if __name__ == "__main__":
    if is_installed():
        sys.stdout.write(f"{PLACE.name}/ is up to date\n")
    else:
        install()
