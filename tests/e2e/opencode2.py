"""
What fallbackd does with an opencode of version 2, checked with the program itself.

    make e2e-opencode2 OPENCODE=/path/to/opencode

It needs no login and no network: models are served by a script. It holds for version 1 too.
"""

import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from tests.e2e.opencode_server import settings_of
from tests.support.daemon import Daemon, running
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

from fallbackd.transports.opencode.link import OpencodeLink

HANG_S = 300.0
LOOK_S = 0.1
PASSWORD = "of-the-check"
CONFIG = """
[backends.opencode]
model = "a/m"
serve = {serve}
[opencode]
servers = [{{ url = "{url}", password_env = "CHECK_PASSWORD" }}]
[roles.build]
chain = ["b/m", "c/m"]
"""


def environment(home: Path) -> dict[str, str]:
    program = os.environ.get("OPENCODE", "")
    assert os.access(program, os.X_OK), "name the program: make e2e-opencode2 OPENCODE=/path"
    found = home / "bin"
    found.mkdir(parents=True)
    (found / "opencode").symlink_to(os.path.realpath(program))
    return {
        "HOME": str(home),
        "PATH": f"{found}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "CHECK_PASSWORD": PASSWORD,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


@asynccontextmanager
async def scene(
    tmp_path: Path, *, serve: str = "true"
) -> AsyncIterator[tuple[Daemon, Provider, OpencodeLink, Path]]:
    """A daemon, and a server of a person that it watches."""
    home, work = tmp_path / "home", tmp_path / "work"
    env = environment(home)
    work.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    async with provider() as served:
        place = home / ".config" / "opencode"
        place.mkdir(parents=True)
        (place / "opencode.json").write_text(json.dumps(settings_of(served)))
        own = {"OPENCODE_SERVER_PASSWORD": PASSWORD, "OPENCODE_PASSWORD": PASSWORD}
        command = [str(home / "bin" / "opencode"), "serve", "--hostname", "127.0.0.1"]
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=work,
            env={**env, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        link = OpencodeLink(url, password=PASSWORD)
        try:
            with anyio.fail_after(HANG_S):
                async with running(
                    tmp_path, CONFIG.format(url=url, serve=serve), env=env
                ) as daemon:
                    yield daemon, served, link, work
        finally:
            await link.aclose()
            server.terminate()
            server.wait()


async def check_delegation(tmp_path: Path, serve: str) -> None:
    async with scene(tmp_path, serve=serve) as (daemon, _, _, work):
        asked = {"prompt": "say pong", "cwd": str(work), "chain": ["opencode"]}
        done = await daemon.client.call("delegate", {**asked, "wait": "finished"})
        assert done["state"] == "succeeded", done
        assert done["text"].strip() == TEXT


async def test_work_is_delegated_to_a_server_of_its_own(tmp_path: Path) -> None:
    await check_delegation(tmp_path, "true")


async def test_work_is_delegated_to_a_run(tmp_path: Path) -> None:
    await check_delegation(tmp_path, "false")


async def test_a_session_whose_model_is_throttled_continues_with_the_next_one(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as (daemon, served, link, work):
        while "server.followed" not in daemon.log():
            await anyio.sleep(LOOK_S)
        assert (await link.call("GET", "/global/health")).is_good
        served.behave("a", "429", retry_after_s=None)
        place = str(work)
        made = await link.call("POST", "/session", body={"title": "t"}, directory=place)
        assert made.is_good, made
        session = made.body["id"]
        body = {
            "model": {"providerID": "a", "modelID": "m"},
            "agent": "build",
            "parts": [{"type": "text", "text": "say pong"}],
        }
        sent = await link.call(
            "POST", f"/session/{session}/prompt_async", body=body, directory=place
        )
        assert sent.is_good, sent
        while True:
            found = await link.call("GET", f"/session/{session}/message", directory=place)
            assert found.is_good, found
            last = found.body[-1] if found.body else {"info": {}, "parts": []}
            if last["info"].get("finish") == "stop":
                break
            await anyio.sleep(LOOK_S)
        assert last["info"]["providerID"] == "b"
        seen = await daemon.client.call("session.get", {"session": session})
        assert seen["current"] == "b/m"
