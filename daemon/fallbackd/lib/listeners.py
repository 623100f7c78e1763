"""Ports of the loopback device: who listens there, by the tables of the kernel; a free one."""

import os
import socket
from collections.abc import Set
from pathlib import Path
from urllib.parse import urlsplit

_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_PORT, _STATE, _INODE = 1, 3, 9


def listens(pid: int, url: str) -> bool:
    """
    Whether a process itself holds the socket behind an address of this machine.

    False also where that cannot be seen: another network or PID namespace, another user.

    Source: proc(5), /proc/net/tcp and /proc/PID/fd.
    """
    port = urlsplit(url).port
    if pid <= 0 or port is None:
        return False
    sockets = _sockets_at(port)
    return bool(sockets) and _has_any(pid, sockets)


def listener(url: str) -> int | None:
    """The process that listens at an address of this machine; None: it cannot be seen."""
    port = urlsplit(url).port
    return None if port is None else holder(_sockets_at(port))


def holder(sockets: Set[str]) -> int | None:
    """The process that has one of these open (`socket:[INODE]`); None: it cannot be seen."""
    if not sockets:
        return None
    for name in os.listdir("/proc"):
        if name.isdigit() and _has_any(int(name), sockets):
            return int(name)
    return None


def _sockets_at(port: int) -> set[str]:
    ending = f":{port:04X}"
    found = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[_STATE] == _LISTEN and fields[_PORT].endswith(ending):
                found.add(f"socket:[{fields[_INODE]}]")
    return found


def open_sockets(pid: int) -> set[str]:
    """
    What a process has open, as links of `/proc`.

    Raises:
        OSError: It has exited, or hides it.
    """
    place = f"/proc/{pid}/fd"
    found: set[str] = set()
    for name in os.listdir(place):
        try:
            found.add(os.readlink(f"{place}/{name}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def _has_any(pid: int, sockets: Set[str]) -> bool:
    try:
        return not sockets.isdisjoint(open_sockets(pid))
    except OSError:
        return False


def free_port() -> int:
    """Free a moment ago. Who loses the race for it starts again with another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
