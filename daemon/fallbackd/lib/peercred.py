"""Who is at the other end of a Unix socket, by the word of the kernel."""

import os
import socket
import struct
from typing import NamedTuple

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
