"""
Owner of the other end of a connection to this machine.

A port on loopback belongs to the first process of any user that takes it. What is sent to one that
is expected to be of our own making is held back until the kernel says whose it is.

Source: proc_pid_net(5), `tcp` and `tcp6`; net/ipv4/tcp_ipv4.c, `get_tcp4_sock`.
"""

import ipaddress
import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ROOT = 0
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"


class ForeignListener(Exception):
    """The server's user is neither ours nor root, or not known. The text says so to people."""


class _Row(Struct, frozen=True):
    local: tuple[Address, int]
    remote: tuple[Address, int]
    is_listening: bool
    uid: int
    inode: int
    """0: of a connection that no process has accepted yet; its uid is then 0 as well."""


def _owners(peer: tuple[Address, int], own: tuple[Address, int]) -> tuple[set[int], set[int]]:
    """Find the owners of listener and connection; one not accepted yet has no owner."""
    rows = [row for row in _rows() if row.local[1] == peer[1]]
    listening = {r.uid for r in rows if r.is_listening and _serves(r.local[0], peer[0])}
    accepted = {r.uid for r in rows if (r.local, r.remote) == (peer, own) and r.inode}
    return listening, accepted


def require_own_peer(connected: socket.socket, *, uid: int | None = None) -> None:
    """
    Accept a connection to loopback only where its server runs as `uid` (None: ours) or as root.

    A connection that leaves the machine is none of this function's business. Blocks for the time
    that the kernel takes to list its sockets.

    Raises:
        ForeignListener: Nothing may be sent.
    """
    peer, own = _endpoint(connected.getpeername()), _endpoint(connected.getsockname())
    if not peer[0].is_loopback:
        return
    listening, accepted = _owners(peer, own)
    where = f"{f'[{peer[0]}]' if peer[0].version == 6 else peer[0]}:{peer[1]}"
    if not listening:
        raise ForeignListener(f"which user serves {where} cannot be determined; nothing was sent")
    foreign = (listening | accepted) - {ROOT, os.geteuid() if uid is None else uid}
    if foreign:
        raise ForeignListener(
            f"{where} is served by user {_name(min(foreign))}, and neither by yours nor by root; "
            "nothing was sent"
        )


def _rows() -> Iterator[_Row]:
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split()
            yield _Row(
                local=_address(fields[1]),
                remote=_address(fields[2]),
                is_listening=fields[3] == _LISTEN,
                uid=int(fields[7]),
                inode=int(fields[9]),
            )


def _address(text: str) -> tuple[Address, int]:
    """`0100007F:1F98`: words of 32 bits, each in the order of bytes of the machine."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    return _plain(ipaddress.ip_address(b"".join(words))), int(port, 16)


def _endpoint(name: tuple[str, int]) -> tuple[Address, int]:
    return _plain(ipaddress.ip_address(name[0].partition("%")[0])), name[1]


def _plain(address: Address) -> Address:
    """An IPv4 address that IPv6 wraps is itself."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _serves(bound: Address, asked: Address) -> bool:
    """A wildcard of IPv6 may take connections of IPv4 as well."""
    return bound == asked or (bound.is_unspecified and bound.version >= asked.version)


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)
