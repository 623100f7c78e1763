"""Processes as the kernel shows them: who descends from whom, and safe signals to them."""

import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    state: str
    start: int
    """Clock ticks since boot. With the pid it names one process for ever."""

    @property
    def is_dead(self) -> bool:
        return self.state in "ZX"


_STAT_BYTES = 4096
"""More than 52 numbers of 20 digits and a name."""


def process(pid: int) -> Process | None:
    """
    Look at one process. None: there is no such process.

    Raises:
        OSError: Unknown, as without a free file descriptor. That is no proof of an end.
    """
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(handle, _STAT_BYTES)
        finally:
            os.close(handle)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name stands in brackets and may hold brackets and spaces itself.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode(),
        start=int(fields[19]),
    )


def ticks_now() -> int:
    """The start of a process that would be started now."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def name_of(pid: int) -> str:
    """Read its name without what a terminal would not print; empty: there is none."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            found = file.read(64).decode(errors="replace")
    except OSError:
        return ""
    return "".join(each for each in found if each.isprintable()).strip()


def is_of_user(pid: int, uid: int) -> bool:
    """Return whether it acts for a user, which a process cannot hide; False also of one gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return any(b"%d" % uid in line.split() for line in lines if line.startswith(b"Uid:"))


def is_same(known: Process) -> bool:
    """Return whether it lives. Its number alone may have been given to another one."""
    now = process(known.pid)
    return now is not None and now.start == known.start and not now.is_dead


def processes() -> list[Process]:
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in found if each is not None]


def descendants(roots: Iterable[int], of: Iterable[Process]) -> list[Process]:
    """Everything below `roots`, at any depth, zombies included; not `roots` themselves."""
    children: dict[int, list[Process]] = {}
    for each in of:
        children.setdefault(each.parent, []).append(each)
    below: list[Process] = []
    seen = set(roots)
    pending = list(seen)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                below.append(child)
                pending.append(child.pid)
    return below


def send_signal(to: Process, number: int) -> bool:
    """
    Signal exactly this process: a pid that was given to another one meanwhile is spared.

    Returns:
        Whether the signal was delivered. False also when we may not (EPERM).
    """
    try:
        handle = os.pidfd_open(to.pid)
    except OSError:
        return False
    try:
        now = process(to.pid)
        if now is None or now.start != to.start:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def boot_id() -> str:
    """
    Empty: the kernel tells none.

    Raises:
        OSError: Unknown for now.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def is_other_boot(boot: str) -> bool:
    """
    Return whether a recorded boot is known to be another one than this: what ran then runs no more.

    Raises:
        OSError: As `boot_id`.
    """
    now = boot_id()
    return bool(boot and now) and boot != now
