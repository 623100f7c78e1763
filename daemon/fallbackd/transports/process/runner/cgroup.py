"""
A control group of one attempt, below that of the service in which the daemon runs.

What a program starts stays in its group, whatever session, environment or parent it has: an empty
group proves that all of it has exited, also where its runner was killed. There is one where a
user's service manager runs the daemon as a service, and gives it a group of its own (`Delegate=`).

Source: the kernel's cgroup-v2.rst (`cgroup.kill`, `cgroup.events`), systemd.exec(5).
"""

import os
import re
import time
from collections.abc import Mapping

_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_NAME = "attempt-"
_OURS = re.compile(_NAME + r"[A-Za-z0-9_.-]+")
_LOOK_S = 0.02


def find_home(environ: Mapping[str, str]) -> str:
    """The group of the service that this very process is; empty: it is none of a user's manager."""
    if environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return ""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    path = next((line[3:] for line in lines if line.startswith("0::")), "")
    if not path.endswith(".service") or "/user@" not in path:
        return ""
    for mount in _MOUNTS:
        home = mount + path
        if os.path.exists(f"{home}/cgroup.kill") and os.access(f"{home}/cgroup.procs", os.W_OK):
            return home if os.stat(home).st_uid == os.geteuid() else ""
    return ""


def path_for(home: str, attempt: str, token: str) -> str:
    """Return where the group of an attempt is to be; empty: nowhere."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", attempt)[:64]
    return f"{home}/{_NAME}{name}-{token}" if home else ""


def is_of(path: str, token: str) -> bool:
    """Return whether a recorded path names the group of that attempt, and not just any group."""
    above, name = os.path.split(path)
    is_ours = bool(_OURS.fullmatch(name)) and bool(token) and name.endswith(f"-{token}")
    return is_ours and above.startswith("/sys/fs/cgroup/") and os.path.normpath(path) == path


def groups_of(pid: int) -> set[str]:
    """Names of the groups of attempts that a process is in; none where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            text = file.readall().decode()
    except OSError:
        return set()
    lines = text.splitlines() if _NAME in text else []
    names = {name for line in lines if line.startswith("0::") for name in line.split("/")}
    return {name for name in names if _OURS.fullmatch(name)}


def enter(path: str) -> bool:
    """Make the group and go in, so that what is started now is in it. False: it cannot be."""
    try:
        os.mkdir(path)
        _write(f"{path}/cgroup.procs", "0")
    except OSError:
        return False
    return True


def leave(path: str) -> bool:
    """Back into the group above: the runner is not to be ended with its program."""
    try:
        _write(f"{os.path.dirname(path)}/cgroup.procs", "0")
    except OSError:
        return False
    return True


def is_empty(path: str) -> bool:
    """Return whether no process is left in it. False also where that cannot be seen."""
    try:
        with open(f"{path}/cgroup.events", encoding="ascii") as file:
            return "populated 0" in file.read().splitlines()
    except OSError:
        return False


def kill(path: str) -> None:
    try:
        _write(f"{path}/cgroup.kill", "1")
    except OSError:
        pass  # `is_empty` reports whether anything is left


def end(path: str, *, bound_s: float) -> bool:
    """Kill what is in it. Blocks until it is empty; False: it is not, after `bound_s`."""
    until = time.monotonic() + bound_s
    while not is_empty(path):
        if time.monotonic() >= until:
            return False
        kill(path)
        time.sleep(_LOOK_S)
    return True


def remove(path: str) -> None:
    """Remove it with the empty groups that a program has made below."""
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            pass


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
