"""Who is at the other end of a Unix socket, by the word of the kernel."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")


class PeerCredentials(NamedTuple):
    """As of the moment of `connect`. The process may be gone by now, or be another one."""

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
        ProcessLookupError: It has exited, before or meanwhile, or is in no PID namespace that this
            process can see.
        OSError: No descriptor is free.
    """
    pid = peer(connection).pid
    if pid <= 0:
        raise ProcessLookupError(errno.ESRCH, "it is in a PID namespace that is not seen from here")
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
