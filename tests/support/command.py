"""The command line of the client as a person starts it: a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Struct
from tests.support.daemon import HANG_S, ROOT


class Ran(Struct, frozen=True, kw_only=True):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def client_environ(socket: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "FALLBACKD_SOCKET": socket,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": str(ROOT / "client"),
        **(env or {}),
    }


def client_argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fallbackd_client.cli.main", *arguments]


async def run_client(
    socket: str,
    *arguments: str,
    stdin: bytes = b"",
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Ran:
    """`fallbackd-client ARGUMENTS`, until it has ended."""

    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            client_argv(*arguments),
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=client_environ(socket, env),
            timeout=HANG_S,
            check=False,
        )

    done = await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    return Ran(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
