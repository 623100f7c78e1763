"""The kernel says who is at the other end of a Unix socket."""

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fallbackd.lib.processes import SO_PEERPIDFD, PeerCredentials, held, peer


def test_the_peer_is_the_process_that_connected() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        assert peer(left) == PeerCredentials(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())


def test_a_socket_of_another_family_is_an_error() -> None:
    with socket.socket(socket.AF_INET) as other, pytest.raises(OSError, match="not a Unix socket"):
        peer(other)


class Kernel(socket.socket):
    """A socket about whose peer the kernel gives this answer."""

    answer: int | None = None
    pid: int | None = None

    def getsockopt(self, level: int, name: int, size: int = 0) -> Any:  # type: ignore[override]
        if name == SO_PEERPIDFD and self.answer is not None:
            raise OSError(self.answer, os.strerror(self.answer))
        if name == socket.SO_PEERCRED and self.pid is not None:
            return struct.pack("3i", self.pid, os.getuid(), os.getgid())
        return super().getsockopt(level, name, size) if size else super().getsockopt(level, name)


@contextmanager
def connected(code: str) -> Iterator[tuple[Kernel, subprocess.Popen[str]]]:
    """A connection that another process has made, and that process."""
    name = f"\0fallbackd-test-{os.getpid()}-{id(code)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        head = f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect({name!r})"
        with subprocess.Popen(
            [sys.executable, "-c", f"{head}; {code}"], stdin=subprocess.PIPE, text=True
        ) as process:
            accepted, _ = listener.accept()
            with Kernel(fileno=accepted.detach()) as connection:
                yield connection, process
                assert process.stdin is not None
                process.stdin.close()


def test_a_peer_is_held_while_it_is_looked_at() -> None:
    with connected("sys.stdin.read()") as (connection, process), held(connection) as pid:
        assert pid == process.pid


@pytest.mark.parametrize("answer", [None, errno.EINVAL, errno.ESRCH, errno.ENOPROTOOPT])
def test_of_a_peer_that_has_exited_nothing_is_known(answer: int | None) -> None:
    with connected("") as (connection, process):
        process.wait()
        connection.answer = answer
        with pytest.raises(ProcessLookupError), held(connection):
            pass


@pytest.mark.parametrize("answer", [None, errno.ENOPROTOOPT], ids=["kernel", "older kernel"])
def test_a_peer_that_exits_meanwhile_is_not_believed(answer: int | None) -> None:
    with connected("sys.stdin.read()") as (connection, process):
        connection.answer = answer
        looking = held(connection)
        looking.__enter__()
        process.kill()
        process.wait()
        with pytest.raises(ProcessLookupError):
            looking.__exit__(None, None, None)


def test_an_older_kernel_holds_the_process_that_has_the_number_now() -> None:
    with connected("sys.stdin.read()") as (connection, process):
        connection.answer = errno.ENOPROTOOPT
        with held(connection) as pid:
            assert pid == process.pid


def test_without_a_descriptor_it_is_unknown() -> None:
    with connected("sys.stdin.read()") as (connection, _):
        connection.answer = errno.EMFILE
        with pytest.raises(OSError, match="Too many open files"), held(connection):
            pass


def test_a_peer_of_a_pid_namespace_that_is_not_seen_is_not_known() -> None:
    with connected("sys.stdin.read()") as (connection, _):
        connection.pid = 0
        with pytest.raises(ProcessLookupError, match="not seen from here"), held(connection):
            pass
