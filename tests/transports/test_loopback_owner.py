"""A server on loopback that another user runs is told nothing."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.http_backends import LIMIT_S

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import HttpRequest, NoAnswer, Work
from fallbackd.transports.http import loopback_owner
from fallbackd.transports.http.loopback_owner import ForeignListener, require_own_peer
from fallbackd.transports.http.transport import HttpTransport

STRANGER = 65_534
SERVER = """
import os, socket, sys
family, host, accepts, uid = sys.argv[1], sys.argv[2], sys.argv[3] == "yes", int(sys.argv[4])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
listener = socket.create_server((host, 0), family=getattr(socket, family))
print(listener.getsockname()[1], flush=True)
while accepts:
    peer = listener.accept()[0]
    said = peer.recv(65536)
    print(len(said), flush=True)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\nconnection: close\\r\\n\\r\\n{}")
    peer.close()
sys.stdin.read()
"""


@contextmanager
def served(
    host: str = "127.0.0.1", *, by_stranger: bool, family: str = "AF_INET", accepts: bool = True
) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A server of another user where that can be had: for root. Else `uid` plays it."""
    uid = STRANGER if by_stranger and os.geteuid() == 0 else 0
    argv = [sys.executable, "-I", "-c", SERVER, family, host, "yes" if accepts else "no", str(uid)]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def our_uid(*, by_stranger: bool) -> int | None:
    """Whom the daemon runs as, so that the server is a stranger's."""
    return os.geteuid() + 1 if by_stranger and os.geteuid() != 0 else None


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize(
    ("family", "host", "asked"),
    [
        ("AF_INET", "127.0.0.1", "127.0.0.1"),
        ("AF_INET", "0.0.0.0", "127.0.0.1"),
        ("AF_INET6", "::1", "::1"),
        ("AF_INET6", "::", "::1"),
    ],
)
def test_the_owner_of_a_listener_is_seen_on_every_kind_of_address(
    family: str, host: str, asked: str, accepts: bool
) -> None:
    for by_stranger in (False, True):
        with (
            served(host, by_stranger=by_stranger, family=family, accepts=accepts) as (port, _),
            socket.create_connection((asked, port)) as connected,
        ):
            uid = our_uid(by_stranger=by_stranger)
            if not by_stranger:
                require_own_peer(connected, uid=uid)
                continue
            with pytest.raises(ForeignListener, match=r"is served by user .*nothing was sent"):
                require_own_peer(connected, uid=uid)


def test_a_listener_of_both_families_is_found_by_either(tmp_path: Path) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connected:
            require_own_peer(connected)
            if os.geteuid() != 0:
                with pytest.raises(ForeignListener):
                    require_own_peer(connected, uid=os.geteuid() + 1)


def test_without_the_kernels_tables_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_owner, "TABLES", (Path("/proc/net/there-is-none"),))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connected,
        pytest.raises(ForeignListener, match="cannot be determined"),
    ):
        require_own_peer(connected)


async def ask(place: Path, port: int) -> tuple[object, HttpRequest]:
    options = Options(base_url=f"http://127.0.0.1:{port}/v1")
    call = KINDS["hermes-api"].start(
        Work(prompt="the secret prompt", prompt_path="", cwd="/", scratch="/"), options
    )
    assert isinstance(call, HttpRequest)
    transport = HttpTransport(clock=ManualClock(), environ={})
    try:
        with anyio.fail_after(LIMIT_S):
            running = await transport.open(call, attempt="d1.1", directory=str(place), env={})
            async for _ in running.chunks():
                pass
            return running.exit, call
    finally:
        await transport.aclose()


@pytest.mark.root
async def test_a_prompt_is_not_sent_to_the_server_of_another_user(tmp_path: Path) -> None:
    with served(by_stranger=True) as (port, process):
        exit, _ = await ask(tmp_path, port)
        assert isinstance(exit, NoAnswer)
        assert exit.exception == "ForeignListener"
        assert f"127.0.0.1:{port} is served by user" in exit.text
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"  # what it has read of the connection


async def test_a_prompt_is_sent_to_a_server_of_our_own(tmp_path: Path) -> None:
    with served(by_stranger=False) as (port, process):
        await ask(tmp_path, port)
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 100
