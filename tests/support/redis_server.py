"""
A server that machines share their health on: the real one, private to a test.

    with redis_server(tmp_path) as server:
        … server.url …

`valkey-server` is taken where there is one. Only processes that were started here are ended here.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

HANG_S = 30.0
PROGRAMS = ("valkey-server", "redis-server")


def server_program() -> str:
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert found is not None, "install redis-server or valkey-server for this test"
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class RedisServer:
    def __init__(
        self, directory: Path, arguments: Sequence[str] = (), *, tls_port: int = 0
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        # Not below the directory: a socket path holds at most 107 bytes.
        self._runtime = Path(tempfile.mkdtemp(prefix="fbd-share-"))
        self.socket = str(self._runtime / "server.sock")
        self.port = free_port()
        self.arguments = tuple(arguments)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(self.socket)}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert self.process is None
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    server_program(), "--port", str(self.port), "--bind", "127.0.0.1",
                    "--unixsocket", self.socket, "--dir", str(self.directory),
                    "--save", "", "--appendonly", "no", "--daemonize", "no", *self.arguments,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + HANG_S
        while not self._answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def restore(self, key: str, dumped: bytes) -> bytes:
        """Put a key back as it was when it was dumped."""
        return self.command("RESTORE", key, "0", dumped, "REPLACE")

    def command(self, *words: str | bytes) -> bytes:
        """The answer of the server as it comes, to a short command over a connection of its own."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(HANG_S)
            one.connect(self.socket)
            parts = [f"*{len(words)}\r\n".encode()]
            for word in words:
                data = word.encode() if isinstance(word, str) else word
                parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
            one.sendall(b"".join(parts))
            return one.recv(1 << 20)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._runtime, ignore_errors=True)


@contextmanager
def redis_server(directory: Path, *arguments: str) -> Iterator[RedisServer]:
    server = RedisServer(directory, arguments)
    try:
        server.start()
        yield server
    finally:
        server.end()
