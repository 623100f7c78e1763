"""
Other processes of this machine, by the word of the kernel.

Who is at the other end of a Unix socket, what a process was started with, who listens at a port of
the loopback device, and which requests at such a port have no answer yet: a server that has
received something on a connection and has sent nothing since owes one.
"""

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Generator, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from fallbackd.lib.clock import wall_clock

SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")


class OutOfSight(ProcessLookupError):
    """A process of a container, or of the host of this one: it is never seen from here."""


class PeerCredentials(NamedTuple):
    """Identity at the moment of `connect`. The process may be gone by now, or be another one."""

    pid: int
    """0 where the process is in a PID namespace that we cannot see."""
    uid: int
    gid: int


def peer(connection: socket.socket) -> PeerCredentials:
    """
    The process that connected.

    Raises:
        OSError: Not a connected Unix socket.

    Source: unix(7), SO_PEERCRED.
    """
    if connection.family != socket.AF_UNIX:
        raise OSError("not a Unix socket")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return PeerCredentials._make(_UCRED.unpack(raw))


@contextmanager
def held(connection: socket.socket) -> Iterator[int]:
    """
    The process id of the peer, which is given to no other process meanwhile. Before Linux 6.5: of
    the process that has that number now.

    Raises:
        OutOfSight: It is in no PID namespace that this process can see.
        ProcessLookupError: It has exited, before or meanwhile.
        OSError: No descriptor is free.
    """
    pid = peer(connection).pid
    if pid <= 0:
        raise OutOfSight(errno.ESRCH, "it is in a PID namespace that is not seen from here")
    handle = _pidfd(connection, pid)
    try:
        yield pid
        if _has_exited(handle):
            raise _exited()
    except ProcessLookupError as error:  # from reading what /proc says of it
        raise _exited() from error
    finally:
        os.close(handle)


def _exited() -> ProcessLookupError:
    return ProcessLookupError(errno.ESRCH, "it has exited already")


def _has_exited(handle: int) -> bool:
    poll = select.poll()  # `select` takes small numbers only
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _pidfd(connection: socket.socket, pid: int) -> int:
    """
    Raises:
        ProcessLookupError: It has exited and its parent has taken note of it.
        OSError: No descriptor is free.

    Source: unix(7), SO_PEERPIDFD; net/core/sock.c.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ESRCH, errno.ENODATA):
            raise _exited() from error
        if error.errno != errno.ENOPROTOOPT:
            raise
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise _exited() from error


def client_of(peer: PeerCredentials) -> str | None:
    """
    The user and the session of processes (a terminal, a service) that a peer belongs to.

    Whatever a script starts is one client, also when each of its processes connects by itself.
    None: the process is gone, or of another PID namespace.
    """
    if peer.pid <= 0:
        return None
    try:
        return f"{peer.uid}:{os.getsid(peer.pid)}"
    except OSError:
        return None


MAX_ENVIRON_BYTES = 1024 * 1024
_PIECE_BYTES = 16 * 1024


def read_variables(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    """Read variables that a process was started with; none of one that is gone."""
    try:
        raw = _raw_environ(pid)
        # Most processes have none of them, and a caller has several processes above it.
        is_there = any(os.fsencode(name) + b"=" in raw for name in names)
        found = _variables(raw) if is_there else {}
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in names if name in found}


def read_arguments(pid: int) -> tuple[str, ...]:
    """The words of its command line; none of one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return ()
    return tuple(os.fsdecode(one) for one in raw.removesuffix(b"\0").split(b"\0"))


def _raw_environ(pid: int) -> bytes:
    found = b""
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        # A piece at a time: room for the most costs more than what there is.
        while len(found) < MAX_ENVIRON_BYTES and (piece := file.read(_PIECE_BYTES)):
            found += piece
    return found[:MAX_ENVIRON_BYTES]


def _variables(raw: bytes) -> dict[str, str]:
    pairs = (one.partition(b"=") for one in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def read_environment(pid: int) -> dict[str, str]:
    """All that a process was started with; nothing of one that is gone."""
    try:
        return {name: value for name, value in _variables(_raw_environ(pid)).items() if name}
    except (OSError, ValueError):
        return {}


_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_PORT, _STATE, _INODE = 1, 3, 9


def listens(pid: int, url: str) -> bool:
    """
    Check whether a process itself holds the socket behind an address of this machine.

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
    Return the open sockets of a process, as links of `/proc`.

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


_SOCK_DIAG, _DUMP = 4, 0x301
_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_ESTABLISHED = 1 << 1
_INFO = 2
_HEADER, _SOCKET, _ATTRIBUTE = 16, 72, 4
TICK_MS = 10
"""The kernel counts in ticks of up to so long: what is closer together has no order."""


class Unanswered(Struct, frozen=True, kw_only=True):
    came_at: float
    """Unix seconds."""
    is_certain: bool
    """
    False: within one tick the server received something and sent something, in any order. Where
    that was an answer, its acknowledgement tells within some 40 ms.
    """
    client: int | None
    """The process that waits; None: it cannot be seen."""


class _Connection(Struct, frozen=True):
    port: int
    peer: int
    inode: int
    info: bytes

    def ms(self, at: int) -> int:
        return int.from_bytes(self.info[at : at + 4], "little") if len(self.info) >= at + 4 else 0

    @property
    def sent_ms(self) -> int:
        """Since the last one that was sent, in milliseconds."""
        return self.ms(44)

    @property
    def received_ms(self) -> int:
        return self.ms(52)

    @property
    def acknowledged_ms(self) -> int:
        return self.ms(56)

    @property
    def is_answered(self) -> bool:
        """
        Check whether something sent after a request was acknowledged later than the request came.
        """
        if self.received_ms > self.sent_ms or not self.has_received:
            return True
        return self.has_sent and self.received_ms - self.acknowledged_ms > TICK_MS

    @property
    def has_received(self) -> bool:
        return self.ms(152) > 0

    @property
    def has_sent(self) -> bool:
        return self.ms(156) > 0


def unanswered(port: int) -> list[Unanswered]:
    """
    Source: sock_diag(7), `struct tcp_info` of linux/tcp.h.

    Raises:
        OSError: The kernel does not say.
    """
    now = wall_clock()
    all_of_them = list(_connections())
    clients = {(one.peer, one.port): one.inode for one in all_of_them if one.peer == port}
    found = []
    for one in all_of_them:
        if one.port != port or one.is_answered:
            continue
        inode = clients.get((port, one.peer), 0)
        found.append(
            Unanswered(
                came_at=now - one.received_ms / 1000,
                is_certain=not one.has_sent or one.sent_ms - one.received_ms > TICK_MS,
                client=holder({f"socket:[{inode}]"}) if inode else None,
            )
        )
    return found


def client_socket(connection: socket.socket) -> int | None:
    """
    The inode of the other end of a TCP connection of this machine; None: it is not seen.

    Raises:
        OSError: The kernel does not say.
    """
    port, peer = connection.getsockname()[1], connection.getpeername()[1]
    ends = (one.inode for one in _connections() if (one.port, one.peer) == (peer, port))
    return next(filter(None, ends), None)


def _connections() -> Iterator[_Connection]:
    deadline = time.monotonic() + 1.0
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            asked = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED
            )
            header = struct.pack("=IHHII", _HEADER + len(asked), _BY_FAMILY, _DUMP, 1, 0)
            kernel.send(header + asked)
            while time.monotonic() < deadline:
                if (yield from _read(kernel.recv(1 << 18))):
                    break
            else:
                raise TimeoutError(errno.ETIMEDOUT, "sock_diag")


def _read(data: bytes) -> Generator[_Connection, None, bool]:
    """Returns whether it was the last piece of the answer."""
    at = 0
    while at + _HEADER <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == _ERROR:
            raise OSError(-struct.unpack_from("=i", data, at + _HEADER)[0], "sock_diag")
        if kind == _DONE or length < _HEADER:
            return True
        body = data[at + _HEADER : at + length]
        port, peer = struct.unpack_from(">HH", body, 4)
        inode = struct.unpack_from("=I", body, 68)[0]
        yield _Connection(port, peer, inode, _attribute(body, _INFO))
        at += (length + 3) & ~3
    return False


def _attribute(body: bytes, wanted: int) -> bytes:
    at = _SOCKET
    while at + _ATTRIBUTE <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < _ATTRIBUTE:
            break
        if kind == wanted:
            return body[at + _ATTRIBUTE : at + length]
        at += (length + 3) & ~3
    return b""
