"""Which program listens at a port of this machine."""

from __future__ import annotations

import os

from fallbackd_client.cli.doctor.findings import user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.doctor.findings import Machine

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"
"""State of a socket in `/proc/net/tcp`. Source: proc_net_tcp(5), `TCP_LISTEN` of Linux."""
_LOOPBACK = frozenset(
    {
        *("00000000", "0100007F", "0" * 32, "0" * 24 + "01000000"),
        *("0" * 16 + "FFFF0000" + one for one in ("00000000", "0100007F")),
    }
)
"""Addresses there that cover 127.0.0.1 or ::1, as a machine with little-endian words has them."""
_LOCAL, _STATE, _UID, _INODE = 1, 3, 7, 9
"""Columns there."""


class Listener:
    """
    Args:
        uid: Whose socket it is.
        inode: Of the socket, by which the process is found.
    """

    __slots__ = ("inode", "port", "uid")

    def __init__(self, port: int, uid: int, inode: str) -> None:
        self.port = port
        self.uid = uid
        self.inode = inode

    def told(self, machine: Machine) -> str:
        """The program and its process; its user alone, where that cannot be seen."""
        pid = holders(machine).get(self.inode)
        if pid is None:
            return f"a program of {user_name(self.uid)}"
        name = (machine.read(f"{machine.root}/proc/{pid}/comm") or "").strip()
        return f"{name or 'a program'} (process {pid})"


def listeners(machine: Machine) -> list[Listener]:
    """On the loopback addresses; none where the kernel does not tell."""
    found: dict[str, Listener] = {}
    for table in _TABLES:
        text = machine.read(f"{machine.root}/proc/net/{table}") or ""
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) <= _INODE or words[_STATE] != _LISTENS:
                continue
            address, _, port = words[_LOCAL].partition(":")
            if address in _LOOPBACK:
                inode = words[_INODE]
                found[inode] = Listener(int(port, 16), int(words[_UID]), inode)
    return list(found.values())


def holders(machine: Machine) -> dict[str, int]:
    """The first process that has each socket open, by inode, among those that we may look into."""
    found: dict[str, int] = {}
    proc = f"{machine.root}/proc"
    for pid in sorted(int(one) for one in _names(proc) if one.isdecimal()):
        for descriptor in _names(f"{proc}/{pid}/fd"):
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{descriptor}")
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                found.setdefault(target[8:-1], pid)
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
