"""
Requests at a port of this machine that have no answer yet, by what the kernel knows of connections.

A server that has received something on a connection and has sent nothing since owes an answer.
"""

import socket
import struct
import time
from collections.abc import Generator, Iterator

from msgspec import Struct

from fallbackd.lib.clock import wall_clock
from fallbackd.lib.listeners import holder

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
        """What was sent after a request is acknowledged later than the request came."""
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
