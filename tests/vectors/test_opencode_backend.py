"""Cases of a server of opencode: a double of it, started by a daemon or by its user."""

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import program
from tests.support.clock import ManualClock
from tests.support.daemon import HANG_S, Daemon, InProcess, in_process, running
from tests.support.fakes import body
from tests.support.running_engine import tried
from tests.support.served import DOUBLE, RECORDED, doubles_end, notes, until

__all__ = ["doubles_end"]

CONFIG = """\
[backends.opencode]
stall_s = 60
[chains]
opencode = ["codex"]
"""


def install(place: Path) -> None:
    """`opencode` and `codex` on the PATH; the first notes what happens to it in `place`."""
    serves = f"DOUBLE_NOTES='{place}/notes' RECORDED_EVENTS='{RECORDED}' exec {sys.executable}"
    program(place / "bin", "opencode", f'export DOUBLE_START=""\n{serves} {DOUBLE} "$@"')
    program(place / "bin", "codex", body("codex", "ok", say="of codex"))


async def begin(daemon: InProcess, prompt: str, place: Path) -> dict[str, Any]:
    found: dict[str, Any] = await daemon.client.call(
        "delegate",
        {"prompt": prompt, "backend": "opencode", "wait": "accepted", "cwd": str(place)},
    )
    return found


@pytest.mark.usefixtures("doubles_end")
async def test_a_heartbeat_is_no_output(tmp_path: Path) -> None:
    """Case field-756."""
    install(tmp_path)
    clock = ManualClock()
    async with in_process(tmp_path, CONFIG, clock=clock) as daemon:
        begun = await begin(daemon, "beats for ever", tmp_path)
        name = begun["delegation"]
        await until(lambda: len(notes(tmp_path, "beat")) > 2)
        for _ in range(5):
            clock.advance(20)  # each time with beats in between
            seen = len(notes(tmp_path, "beat"))
            await until(lambda seen=seen: len(notes(tmp_path, "beat")) > seen + 2)
            await daemon.engine.look_at_clock()
        done = await daemon.client.call("delegation.wait", {"delegation": name})
        assert done["served_by"] == "codex"
        found = await daemon.engine.delegation(name)
        assert tried(found) == [("opencode", "stalled"), ("codex", None)]


@pytest.mark.usefixtures("doubles_end")
async def test_a_stated_wait_of_hours_is_left_at_its_first_event(tmp_path: Path) -> None:
    """Case field-776."""
    install(tmp_path)
    async with in_process(tmp_path, CONFIG, clock=ManualClock()) as daemon:
        begun = await begin(daemon, "later 19800", tmp_path)
        done = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert done["served_by"] == "codex"
        first, second = done["attempts"]
        assert first["failure"]["reason"] in ("usage_limit", "rate_limit")
        assert first["ended_at"] <= second["started_at"]
        assert notes(tmp_path, "abort")
        assert (await daemon.engine.delegation(begun["delegation"])).attempts[0].gone is True


PASSWORD = "of-the-user"


@asynccontextmanager
async def server_of_the_user(place: Path, port: int) -> AsyncIterator[None]:
    """Somebody else's; it is killed at the end of the block."""
    environ = {
        **os.environ,
        "DOUBLE_NOTES": str(place / "notes"),
        "RECORDED_EVENTS": str(RECORDED),
        "TMPDIR": str(place),
        "OPENCODE_SERVER_PASSWORD": PASSWORD,
    }
    command = [sys.executable, str(DOUBLE), "serve", "--port", str(port)]
    async with await anyio.open_process(command, env=environ, stdout=None, stderr=None) as one:
        try:
            yield
        finally:
            one.kill()
            await one.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


async def until_it_is(up: bool, daemon: Daemon) -> None:
    """In between the daemon answers all the time."""
    with anyio.fail_after(HANG_S):
        while True:
            assert await daemon.client.call("daemon.ping")
            found = await daemon.client.call("opencode.status")
            if [one["up"] for one in found["servers"]] == [up]:
                return
            await anyio.sleep(0.02)


async def test_a_server_that_was_killed_is_followed_again_when_it_is_back(tmp_path: Path) -> None:
    """Case field-774."""
    port = free_port()
    config = (
        "[opencode]\n"
        f'servers = [{{ url = "http://127.0.0.1:{port}", password_env = "PASSWORD_OF_IT" }}]\n'
    )
    async with running(tmp_path, config, env={"PASSWORD_OF_IT": PASSWORD}) as daemon:
        pid = daemon.pid
        async with server_of_the_user(tmp_path, port):
            await until_it_is(True, daemon)
        await until_it_is(False, daemon)
        async with server_of_the_user(tmp_path, port):
            await until_it_is(True, daemon)
        assert (await daemon.client.call("status"))["daemon"]["pid"] == pid
