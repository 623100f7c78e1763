"""The socket, the state directory, the configuration: whose they are, and who may reach them."""

from __future__ import annotations

import os
import re
import stat

from fallbackd_client.cli.doctor.findings import (
    ERROR,
    WARNING,
    Finding,
    Machine,
    command,
    user_name,
)

_LITTLE_BYTES = 64 * 1024 * 1024
_LOCK = re.compile(r"^\d+: FLOCK\s+\S+\s+\S+\s+(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")
"""A line of `/proc/locks`. Source: proc(5)."""


def look_at_socket(machine: Machine) -> list[Finding]:
    path = machine.socket
    directory = os.path.dirname(os.path.abspath(path))
    found = _directory(machine, "socket", directory)
    try:
        seen = os.lstat(path)
    except OSError:
        return found  # that there is none shows when the daemon is asked
    if not stat.S_ISSOCK(seen.st_mode):
        what = f"{path} is not a socket, so no daemon can listen there"
        return [*found, Finding("socket", ERROR, what, command("mv", path, f"{path}.away"))]
    mode = stat.S_IMODE(seen.st_mode)
    if seen.st_uid != machine.uid:
        what = f"{path} belongs to {user_name(seen.st_uid)}, whose daemon serves that user only"
        fix = command("sudo", "rm", path)
        found.append(Finding("socket", ERROR, what, fix))
    elif mode & 0o600 != 0o600:
        what = f"{path} has mode {mode:04o}, so even you may not connect to it"
        found.append(Finding("socket", ERROR, what, command("chmod", "600", path)))
    elif mode & 0o077:
        what = f"{path} has mode {mode:04o}, so others may connect to it"
        found.append(Finding("socket", WARNING, what, command("chmod", "600", path)))
    return found


def look_at_state(machine: Machine) -> list[Finding]:
    directory = machine.state_dir
    if not os.path.isdir(directory):
        return _can_be_made("state", directory)
    found = _directory(machine, "state", directory)
    if found and found[-1].level == ERROR:
        return found  # what is in it is for later
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        what = f"the state directory {directory} cannot be read: {error.strerror}"
        return [*found, Finding("state", ERROR, what, command("chmod", "700", directory))]
    if found and names and "lock" not in names:
        what = f"{directory} is open to others and holds other files, so no daemon takes it"
        return [Finding("state", ERROR, what, command("chmod", "700", directory))]
    return found + _contents(machine, directory, names) + _space(directory)


_USED = ("fallbackd.db", "lock", "runs", "servers")


def _foreign(machine: Machine, directory: str, names: list[str]) -> list[str]:
    return [name for name in names if _owner(directory, name) not in (None, machine.uid)]


def _contents(machine: Machine, directory: str, names: list[str]) -> list[Finding]:
    found: list[Finding] = []
    foreign = _foreign(machine, directory, names)
    if foreign:
        what = f"in {directory} the daemon cannot use what belongs to others: {', '.join(foreign)}"
        fix = command("sudo", "chown", "-R", machine.user, directory)
        found.append(Finding("state", ERROR, what, fix))
    own = [os.path.join(directory, name) for name in _USED if name not in foreign]
    for path in own:
        if os.path.isdir(path):
            found += _directory(machine, "state", path)
        elif os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
            what = f"{path} cannot be written, so nothing new is remembered"
            found.append(Finding("state", ERROR, what, command("chmod", "600", path)))
    damaged = [os.path.join(directory, name) for name in names if ".corrupt-" in name]
    if damaged:
        what = f"a damaged database was set aside as {damaged[0]}, and a new one was begun"
        found.append(Finding("state", WARNING, what, command("rm", *damaged)))
    return found


def look_at_config(machine: Machine, *, is_running: bool = False) -> list[Finding]:
    """
    Args:
        is_running: A daemon answers, which keeps what it has read.
    """
    found = []
    directory = os.path.dirname(os.path.abspath(machine.config))
    if os.path.isdir(directory):
        found += _directory(machine, "configuration", directory, is_private=False)
    path = machine.config
    if os.path.exists(path):
        seen = os.stat(path)
        if not os.access(path, os.R_OK):
            which = "built-in configuration is in effect"
            if is_running:
                which = "last good configuration stays in effect until the next start"
            what = f"{path} cannot be read, so the {which}"
            found.append(Finding("configuration", ERROR, what, command("chmod", "u+r", path)))
        if seen.st_uid == machine.uid and seen.st_mode & 0o022:
            what = f"others may write to {path}, which says what is run in your name"
            found.append(Finding("configuration", ERROR, what, command("chmod", "go-w", path)))
    if os.path.exists(machine.env_file) and os.stat(machine.env_file).st_mode & 0o077:
        what = f"others may read {machine.env_file}, where keys may be"
        fix = command("chmod", "600", machine.env_file)
        found.append(Finding("configuration", WARNING, what, fix))
    return found


def lock_holder(machine: Machine, path: str) -> int | None:
    """
    The process that holds the lock file `path`; None: none does. A file alone means nothing.

    Read from the list of locks: taking the lock to try it could be in the way of a daemon that
    starts at this moment.
    """
    try:
        seen = os.stat(path)
    except OSError:
        return None
    for line in (machine.read(f"{machine.root}/proc/locks") or "").splitlines():
        parts = _LOCK.match(line)
        if parts is None:
            continue
        pid, major, minor, inode = parts.groups()
        device = os.makedev(int(major, 16), int(minor, 16))
        if int(inode) == seen.st_ino and device == seen.st_dev:
            return int(pid)
    return None


def _unwritable(machine: Machine, check: str, directory: str, seen: os.stat_result) -> Finding:
    what = f"nothing can be written in the directory {directory}"
    if _is_writable(machine, seen):
        mount = command("findmnt", "--target", directory)
        return Finding(check, ERROR, f"{what}: its disk is read-only", mount)
    mode = stat.S_IMODE(seen.st_mode)
    fix = command("chmod", "u+rwx", directory)
    return Finding(check, ERROR, f"{what} (mode {mode:04o})", fix)


def _directory(
    machine: Machine, check: str, directory: str, *, is_private: bool = True
) -> list[Finding]:
    """One that is there: ours, not to be written by others, writable for us."""
    try:
        seen = os.stat(directory)
    except OSError:
        return []
    mode = stat.S_IMODE(seen.st_mode)
    is_own = is_private and os.path.basename(directory) == "fallbackd"
    allowed = {machine.uid}
    if is_private and not is_own:  # it may be for all, such as that of temporary files
        allowed.add(0)
    if seen.st_uid not in allowed:
        what = f"the directory {directory} belongs to {user_name(seen.st_uid)}"
        fix = command("sudo", "chown", "-R", machine.user, directory)
        return [Finding(check, ERROR, what, fix)]
    if mode & 0o022 and not mode & stat.S_ISVTX:
        what = f"others may write to the directory {directory} (mode {mode:04o})"
        fix = command("chmod", "700" if is_private else "go-w", directory)
        return [Finding(check, ERROR, what, fix)]
    if not _is_writable(machine, seen) or not os.access(directory, os.W_OK | os.X_OK):
        return [_unwritable(machine, check, directory, seen)]
    return _visible(check, directory, mode) if is_own else []


def _visible(check: str, directory: str, mode: int) -> list[Finding]:
    if not mode & 0o077:
        return []
    what = f"others may look into the directory {directory} (mode {mode:04o})"
    return [Finding(check, WARNING, what, command("chmod", "700", directory))]


def _is_writable(machine: Machine, seen: os.stat_result) -> bool:
    """Judge by its mode, for its owner: root may write anywhere, which harms no daemon."""
    return seen.st_uid != machine.uid or seen.st_mode & 0o300 == 0o300


def _can_be_made(check: str, directory: str) -> list[Finding]:
    parent = os.path.dirname(directory)
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK):
        return []
    what = f"the directory {directory} cannot be made: {parent} cannot be written"
    return [Finding(check, ERROR, what, command("chmod", "u+wx", parent))]


def _owner(directory: str, name: str) -> int | None:
    try:
        return os.lstat(os.path.join(directory, name)).st_uid
    except OSError:
        return None


def _space(directory: str) -> list[Finding]:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return []
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes >= _LITTLE_BYTES:
        return []
    what = f"the disk of {directory} has only {free_bytes // 2**20} MiB left"
    fix = f"du -xh -d 2 {command(os.path.dirname(directory))} | sort -h | tail"
    return [Finding("state", ERROR, what, fix)]
