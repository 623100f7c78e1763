"""
Puts the agent CLIs of `package.json` and a clean Debian into `.e2e/`:
`python -m tests.e2e.install`.

Does nothing when `.e2e/` already holds what the lock file names. Ends with a sentence and status 1
when node or npm is missing; the tests never skip for want of a CLI.

The agents of `agents/package.json` are put into `.e2e-agents/`, with a Node.js of their own.

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

from msgspec import Struct

HERE = Path(__file__).resolve().parent
IS_NEWEST = os.environ.get("FALLBACKD_E2E") == "newest"
PLACE = HERE.parents[1] / (".e2e-newest" if IS_NEWEST else ".e2e")
LOCK = "package-lock.json"
FILES = ("package.json", LOCK, ".npmrc")
STAMP = "installed"
BIN = PLACE / "node_modules" / ".bin"


class Set(Struct, frozen=True, kw_only=True):
    source: Path
    place: Path

    @property
    def bin(self) -> Path:
        return self.place / "node_modules" / ".bin"

    @property
    def is_newest(self) -> bool:
        return IS_NEWEST and self is CLIS


CLIS = Set(source=HERE, place=PLACE)
AGENTS = Set(source=HERE / "agents", place=HERE.parents[1] / ".e2e-agents")


def wanted(set: Set = CLIS) -> str:
    if set.is_newest:
        return "newest"
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((set.source / name).read_bytes())
    return digest.hexdigest()


def is_installed(set: Set = CLIS) -> bool:
    stamp = set.place / STAMP
    return stamp.is_file() and stamp.read_text() == wanted(set)


def install(set: Set = CLIS) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not on PATH; the end-to-end tests need Node.js 20")
    set.place.mkdir(exist_ok=True)
    (set.place / STAMP).unlink(missing_ok=True)
    for name in FILES:
        shutil.copyfile(set.source / name, set.place / name)
    if set.is_newest:
        (set.place / LOCK).unlink()
        pinned = json.loads((set.source / "package.json").read_text())["dependencies"]
        _npm(set.place, "install", "--save-exact", *(f"{name}@latest" for name in pinned))
        _say_versions(pinned)
    else:
        # `npm ci` refuses a lock without packages for other systems that are published nowhere.
        _npm(set.place, "install", "--no-save")
    (set.place / STAMP).write_text(wanted(set))


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


def _npm(place: Path, *words: str) -> None:
    command = ["npm", *words, "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=place, check=False)
    if done.returncode:
        raise SystemExit(f"npm {words[0]} ended with {done.returncode} in {place}")


def _say_versions(pinned: Mapping[str, str]) -> None:
    found = json.loads((PLACE / "package.json").read_text())["dependencies"]
    for name, version in pinned.items():
        change = "as pinned" if found[name] == version else f"pinned: {version}"
        sys.stdout.write(f"{name} {found[name]} ({change})\n")


if __name__ == "__main__":
    for each in (CLIS,) if IS_NEWEST else (CLIS, AGENTS):
        if is_installed(each) and not IS_NEWEST:
            sys.stdout.write(f"{each.place.name}/ is up to date\n")
        else:
            install(each)
    if not (IS_NEWEST or DEBIAN.is_file()):
        install_debian()
