"""Which process listens at a port."""

import os
import socket
import subprocess
import sys

from fallbackd.lib.processes import listens

LISTEN = """
import socket, sys
one = socket.socket(); one.bind(("127.0.0.1", 0)); one.listen()
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_only_the_process_that_holds_the_socket_listens() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        url = f"http://127.0.0.1:{child.stdout.readline().strip()}"
        assert listens(child.pid, url)
        assert not listens(os.getpid(), url)
        child.communicate("")
    assert not listens(child.pid, url)


def test_a_port_of_which_nothing_is_known_is_not_listened_at() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert not listens(os.getpid(), f"http://127.0.0.1:{port}")
    assert not listens(0, "http://127.0.0.1:4096")
    assert not listens(os.getpid(), "http://127.0.0.1")
