"""The kernel says who is at the other end of a Unix socket."""

import os
import socket

import pytest

from fallbackd.lib.peercred import PeerCredentials, peer


def test_the_peer_is_the_process_that_connected() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        assert peer(left) == PeerCredentials(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())


def test_a_socket_of_another_family_is_an_error() -> None:
    with socket.socket(socket.AF_INET) as other, pytest.raises(OSError, match="not a Unix socket"):
        peer(other)
