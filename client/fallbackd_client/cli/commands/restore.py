"""`restore`: put a backup of the database back; the next start of the daemon reconciles it."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.cli.output import Style
    from fallbackd_client.client import Client

DATABASE = "fallbackd.db"
_PARTS = ("", "-wal")
_HEADER = b"SQLite format 3\0"
_TO_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup", metavar="DIR", help="where the copy of fallbackd.db is")
    parser.add_argument("--state-dir", metavar="DIR", help="of the daemon, if not the usual one")


def run(args: argparse.Namespace, client: Client) -> int:
    """Nothing is deleted: what was there before is renamed, run directories are only added."""
    from fallbackd_client.cli.doctor.findings import Machine

    source = os.path.abspath(args.backup)
    state_dir = os.path.abspath(args.state_dir or Machine(socket=args.socket).state_dir)
    _require_database(source)
    if os.path.realpath(source) == os.path.realpath(state_dir):
        raise UsageError(
            f"{source} is the state directory itself: name the directory of the backup"
        )
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    held: list[int] = []
    try:
        _lock(held, state_dir)
        aside = _put_aside(state_dir)
        for part in _PARTS:
            if os.path.exists(path := os.path.join(source, DATABASE + part)):
                _copy(path, os.path.join(state_dir, DATABASE + part))
        added = _add_runs(os.path.join(source, "runs"), os.path.join(state_dir, "runs"))
    finally:
        for handle in held:
            os.close(handle)
    done: dict[str, Json] = {"restored": state_dir, "set_aside": aside, "added_runs": added}
    show(args, done, _view)
    return exits.OK


def _view(done: dict[str, Json], style: Style) -> str:
    lines = [f"the database in {done['restored']} is the one of the backup now"]
    if done["set_aside"]:
        lines.append(f"the one before it: {done['set_aside']}")
    if done["added_runs"]:
        lines.append(f"run directories that were missing: {done['added_runs']}")
    lines.append(
        "start the daemon: it takes over what run directories know and the backup does not, and"
        " resumes attempts that still run; see `fallbackd-client list`"
    )
    return "\n".join(lines)


def _require_database(source: str) -> None:
    path = os.path.join(source, DATABASE)
    try:
        with open(path, "rb") as file:
            found = file.read(len(_HEADER))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name the directory with the backup"
        ) from error
    if found != _HEADER:
        raise UsageError(f"{path} is not a database: name the directory with the backup")


def _lock(held: list[int], state_dir: str) -> None:
    """Take the locks of the daemon, which must not run meanwhile."""
    lock_file = os.path.join(state_dir, "lock")
    for path, flags in ((state_dir, os.O_DIRECTORY), (lock_file, _TO_LOCK)):
        held.append(os.open(path, flags | os.O_CLOEXEC, 0o600))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"a daemon uses {state_dir}: stop it first with `fallbackd-client service stop` or"
                " `fallbackd-client shutdown`, and start it afterwards; agents that run are kept"
            ) from error
        except OSError:
            continue  # NFS does not lock directories; where it locks no file, no daemon runs


def _put_aside(state_dir: str) -> str | None:
    """Rename the present database. Returns where it is; None: there is none."""
    present = os.path.join(state_dir, DATABASE)
    aside = f"{present}.before-{int(time.time())}"
    while os.path.exists(aside):
        aside += "x"
    for part in (*_PARTS, "-shm"):
        try:
            os.rename(present + part, aside + part)
        except FileNotFoundError:
            continue
    return aside if os.path.exists(aside) else None


def _copy(path: str, target: str) -> None:
    shutil.copyfile(path, target)
    os.chmod(target, 0o600)


def _add_runs(source: str, target: str) -> int:
    """Add missing runs; those that are there know more than those of the backup."""
    if not os.path.isdir(source):
        return 0
    os.makedirs(target, mode=0o700, exist_ok=True)
    missing = sorted(set(os.listdir(source)) - set(os.listdir(target)))
    for name in missing:
        place = os.path.join(source, name)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.copytree(place, os.path.join(target, name), symlinks=True)
    return len(missing)
