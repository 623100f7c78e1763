"""Whose a process around opencode is, and who waits at a server."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fallbackd.lib.processes import unanswered
from fallbackd.ports.opencode import Written
from fallbackd.transports.opencode.whose import OF_PROGRAMS, ProcessOwners, command_of

NOW = 1_795_713_700.0
HANG_S = 60.0
ASKS = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    line.sendall(b"POST /session/ses_1/message HTTP/1.1\\r\\ncontent-length: 0\\r\\n\\r\\n")
    print("asked", flush=True)
    line.recv(100)
"""


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/usr/bin/opencode"], ""),
        (["/usr/bin/opencode", "/home/me/project"], ""),
        (["/usr/bin/opencode", "-m", "p1/A", "--prompt", "run"], ""),
        (["/usr/bin/opencode", "run", "do it"], "run"),
        (["/x/opencode.exe", "--print-logs", "--log-level", "INFO", "run", "x"], "run"),
        (["node", "/usr/bin/opencode", "acp"], "acp"),
        (["/usr/bin/opencode", "serve", "--port", "4096"], "serve"),
        (["/usr/bin/opencode", "attach", "http://127.0.0.1:4096"], "attach"),
        (["/usr/bin/python3", "agent.py", "run"], None),
        ([], None),
    ],
)
def test_the_command_of_an_opencode_is_read_from_its_words(
    words: list[str], command: str | None
) -> None:
    assert command_of(words) == command


def test_only_commands_that_end_with_their_turn_are_programs() -> None:
    assert {"run", "acp"} <= OF_PROGRAMS
    assert not {"", "attach", "serve", "web", "pr"} & OF_PROGRAMS


@contextmanager
def started(*words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", *words],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


LIVES = 'print("up", flush=True); input()'


def test_a_process_below_an_attempt_is_the_engines() -> None:
    inside = ProcessOwners(lambda pid: "d1.1" if pid == os.getpid() else None)
    assert inside.owner(os.getpid()) == "engine"
    outside = ProcessOwners(lambda _: None)
    assert outside.owner(os.getpid()) == "person"
    assert outside.owner(None) == "person"


def test_what_cannot_be_looked_at_is_left_alone() -> None:
    def fails(_: int) -> str | None:
        raise OSError(24, "Too many open files")

    assert ProcessOwners(fails).owner(os.getpid()) == "engine"


# --- who waits -----------------------------------------------------------------------------------


class Server:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[socket.socket] = []

    def take(self) -> socket.socket:
        """The next request, whole."""
        line, _ = self._listener.accept()
        self.lines.append(line)
        assert line.recv(1000)
        return line

    def close(self) -> None:
        for one in (*self.lines, self._listener):
            one.close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def written(server: Server, *, named_s: float | None = None, after_s: float = 0.0) -> list[Written]:
    (request,) = unanswered(server.port)
    named_at = None if named_s is None else request.came_at + named_s
    return [Written(at=request.came_at + after_s, named_at=named_at)]


def test_a_program_that_has_no_answer_yet_waits_for_its_message(server: Server) -> None:
    owners = ProcessOwners(lambda _: None)
    with started(ASKS, str(server.port)) as program:
        line = server.take()
        (request,) = unanswered(server.port)
        assert (request.client, request.is_certain) == (program.pid, True)
        asked = written(server)
        assert owners.is_awaited(server.url, asked, certainly=True)
        assert owners.is_awaited(server.url, written(server, named_s=-0.01), certainly=True)
        earlier = [Written(at=asked[0].at - 30, named_at=None)]
        assert not owners.is_awaited(server.url, earlier, certainly=True)
        line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        program.wait(HANG_S)
        assert not owners.is_awaited(server.url, asked, certainly=True)


def test_a_request_that_came_before_a_message_was_named_waits_for_another(server: Server) -> None:
    owners = ProcessOwners(lambda _: None)
    with started(ASKS, str(server.port)):
        server.take()
        later = written(server, named_s=9.9, after_s=10)
        assert not owners.is_awaited(server.url, later, certainly=True)
        slow = written(server, named_s=-0.01, after_s=10)
        assert owners.is_awaited(server.url, slow, certainly=True)


def test_an_answer_that_came_at_once_is_told_by_its_acknowledgement(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\n\r\n")
        other = server.take()
        for _ in range(5):  # a connection that was used before acknowledges late
            other.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            assert line.recv(100)
            line.sendall(b"POST / HTTP/1.1\r\n\r\n")
            assert other.recv(100)
        (waits,) = unanswered(server.port)
        other.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert line.recv(100)
        deadline = time.monotonic() + HANG_S
        while unanswered(server.port) and time.monotonic() < deadline:
            pass
        assert unanswered(server.port) == []
        assert waits.client == os.getpid()


def test_a_request_of_our_own_is_no_programs(server: Server) -> None:
    owners = ProcessOwners(lambda _: None)
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\n\r\n")
        server.take()
        assert not owners.is_awaited(server.url, written(server), certainly=True)


@pytest.mark.parametrize(
    ("program", "waits"), [("opencode", False), ("firefox-bin", False), ("agent", True)]
)
def test_the_interface_of_a_person_waits_for_no_answer(
    server: Server, tmp_path: Path, program: str, waits: bool
) -> None:
    script = tmp_path / "opencode"
    script.write_text(ASKS.replace("sys.argv[1]", "sys.argv[-1]"))
    words = [program, str(script), "attach", str(server.port)]
    if program == "agent":
        words = [program, "-c", ASKS, str(server.port)]
    process = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
    try:
        server.take()
        owners = ProcessOwners(lambda _: None)
        found = owners.is_awaited(server.url, written(server), certainly=True)
        assert found is waits
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("url", ["plugin:77:/work", "http://127.0.0.1:1"])
def test_nobody_is_seen_to_wait_where_there_is_no_such_server(url: str) -> None:
    message = Written(at=NOW, named_at=None)
    assert not ProcessOwners(lambda _: None).is_awaited(url, [message], certainly=True)


# --- who asked to stop ---------------------------------------------------------------------------

LOG = """\
timestamp=2026-11-26T17:17:09.849Z level=INFO run=fc795e06 message=cancel session.id=ses_1
timestamp=2026-11-26T17:17:20.355Z level=INFO run=fc795e06 message=cancel session.id=ses_1
timestamp=2026-11-26T17:17:20.360Z level=INFO run=0c795e07 message=cancel session.id=ses_2
not a line of the log message=cancel session.id=ses_1
timestamp=2026-11-26T17:17:20.766Z level=INFO run=fc795e06 message=cancel session.id=ses_1
timestamp=2026-11-26T17:17:20.766Z level=INFO run=fc795e06 message=loop session.id=ses_1 step=0
"""
STOPPED_AT = 1_795_713_440.0


def test_opencodes_log_tells_how_often_a_session_was_asked_to_stop(tmp_path: Path) -> None:
    owners = ProcessOwners(lambda _: None)
    folder = tmp_path / ".local/share/opencode/log"
    folder.mkdir(parents=True)
    with started(LIVES, HOME=str(tmp_path)) as process:
        assert owners.stops(process.pid, "ses_1", since_at=STOPPED_AT) is None
        (folder / "opencode.log").write_text(LOG)
        assert owners.stops(process.pid, "ses_1", since_at=STOPPED_AT) == 2
        assert owners.stops(process.pid, "ses_1", since_at=STOPPED_AT - 3600) == 3
        assert owners.stops(process.pid, "ses_3", since_at=0.0) == 0
        (folder / "opencode.log").unlink()
        os.mkfifo(folder / "opencode.log")
        assert owners.stops(process.pid, "ses_1", since_at=0.0) is None, "nothing waits for a pipe"
    assert owners.stops(None, "ses_1", since_at=0.0) is None
