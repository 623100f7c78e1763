"""
Puts the agent CLIs of `package.json` and a clean Debian into `.e2e/`:
`python -m tests.e2e.install`.

Does nothing when `.e2e/` already holds what the lock file names. Ends with a sentence and status 1
when node or npm is missing; the tests never skip for want of a CLI.

With `FALLBACKD_E2E=newest` the place is `.e2e-newest/`, and what npm calls the latest version of
each is installed there anew, without a lock: what users will have tomorrow.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
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


DEBIAN = PLACE / "debian.tar"
"""The distribution of this machine, with nothing but what its package of fallbackd depends on."""
DEBIAN_HAS = ("man-db", "procps", "python3", "systemd")


def install_debian() -> None:
    """Make it from the archives that apt is configured for on this machine."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        raise SystemExit("a clean Debian is made by root, with debootstrap: install debootstrap")
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    wanted = "$(CODENAME) $(COMPONENT) $(SITE)"
    listed = ["apt-get", "indextargets", "--format", wanted, "Identifier: Packages"]
    rows = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    (archive,) = {row.split()[2] for row in rows if row.split()[:2] == [release, "main"]}
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fallbackd-debian-") as place:
        # What it mounts is gone with its namespace, also where it fails.
        made = ["unshare", "--mount", "debootstrap", "--variant=minbase"]
        made.append(f"--include={','.join(DEBIAN_HAS)}")
        log = PLACE / "debootstrap.log"
        with log.open("w") as told:
            done = subprocess.run([*made, release, place, archive], stdout=told, check=False)
        if done.returncode:
            raise SystemExit(f"debootstrap ended with {done.returncode}; see {log}")
        packed = ["tar", "--one-file-system", "--exclude=./dev/*", "--exclude=./var/cache/apt/*"]
        packed += ["--exclude=./var/lib/apt/lists/*", "--directory", place]
        draft = DEBIAN.with_suffix(f".{os.getpid()}")
        subprocess.run([*packed, "--create", "--file", str(draft), "."], check=True)
        draft.replace(DEBIAN)


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
    if not (IS_NEWEST or DEBIAN.is_file()):
        install_debian()
