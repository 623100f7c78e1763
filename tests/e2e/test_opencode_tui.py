"""Sessions in the interface of opencode, which listens on no port unless it is told to."""

import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct
from tests.e2e import install
from tests.e2e.clis import Home, build_home
from tests.e2e.holding_socket import HoldingSocket, holding_socket
from tests.e2e.opencode_server import settings_of
from tests.e2e.tmux import Tmux, tmux_server
from tests.support.daemon import ROOT, Daemon, running
from tests.support.provider import Provider, provider

HANG_S = 400.0
PLUGIN = ROOT / "contrib" / "opencode-plugin" / "src" / "index.ts"
WINDOW = "opencode"
CONFIG = """
[policy.rate_limit]
window_s = 600
cooldown_s = 0
[roles.build]
chain = ["b/m", "c/m"]
"""


class Scene(Struct, kw_only=True):
    provider: Provider
    daemon: Daemon
    socket: HoldingSocket
    tmux: Tmux

    async def shows(self, words: str) -> str:
        return await self.tmux.until(WINDOW, words, hang_s=HANG_S)

    async def hides(self, words: str) -> None:
        with anyio.fail_after(HANG_S):
            while words in self.tmux.shown(WINDOW):
                await anyio.sleep(0.1)

    async def types(self, text: str) -> None:
        self.tmux.run("send-keys", "-t", WINDOW, "-l", text)
        await self.shows(text)
        self.tmux.run("send-keys", "-t", WINDOW, "Enter")

    def presses(self, key: str) -> None:
        self.tmux.run("send-keys", "-t", WINDOW, key)

    async def logged(self, words: str) -> None:
        with anyio.fail_after(HANG_S):
            while words not in self.daemon.log():
                await anyio.sleep(0.1)

    async def session(self) -> dict[str, Any]:
        (found,) = (await self.daemon.client.call("session.list"))["sessions"]
        return await self.daemon.client.call("session.get", {"session": found["session"]})

    async def forget(self) -> None:
        self.provider.log.clear()
        await self.daemon.client.call("health", {"action": "clear"})


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with anyio.fail_after(6 * HANG_S), tempfile.TemporaryDirectory(prefix="fbd-") as short:
        async with provider() as served:
            home = build_home(tmp_path, served, names=("opencode",))
            place = home.path / ".config" / "opencode" / "opencode.json"
            place.write_text(json.dumps(settings_of(served, plugin=[PLUGIN.as_uri()])))
            between = Path(short) / "control.sock"
            async with (
                running(tmp_path, CONFIG, env=home.env) as daemon,
                holding_socket(between, daemon.socket) as socket,
            ):
                with tmux_server() as tmux:
                    start(tmux, home, between)
                    found = Scene(provider=served, daemon=daemon, socket=socket, tmux=tmux)
                    await found.shows("Ask anything")
                    await found.logged("server.followed")
                    yield found


def start(tmux: Tmux, home: Home, socket: Path) -> None:
    env = {
        **home.env,
        "FALLBACKD_SOCKET": str(socket),
        "npm_config_fetch_retries": "0",
        "TERM": "xterm-256color",
        "PATH": f"{home.env['PATH']}{os.pathsep}/usr/local/bin",
    }
    tmux.run(
        *("new-session", "-d", "-x", "220", "-y", "50", "-n", WINDOW, "-c", str(home.work)),
        str(install.BIN / "opencode"),
        env=env,
    )


async def test_sessions_of_an_opencode_without_a_port_live_on(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await a_throttled_model_is_left_and_one_notice_says_what_protects(s)
        await a_compaction_that_is_throttled_leaves_the_finished_turn_alone(s)
        await esc_ends_a_rescue(s)


async def a_throttled_model_is_left_and_one_notice_says_what_protects(s: Scene) -> None:
    s.provider.behave("a", "429", retry_after_s=None)
    s.socket.hold("/abort")
    await s.types("say pong")
    await s.shows("fallbackd protects the sessions")
    s.socket.release()
    await s.shows("switched from m .a. to m .b.")
    await s.provider.called("b", where=lambda one: one.kind == "main")
    await s.logged("rescue.done")
    session = await s.session()
    assert (session["original"], session["current"]) == ("a/m", "b/m")
    status = await s.daemon.client.call("opencode.status")
    (server,) = status["servers"]
    assert server["url"].startswith("plugin:")
    assert "localhost:4096" not in s.daemon.log()
    await s.hides("interrupt")


async def a_compaction_that_is_throttled_leaves_the_finished_turn_alone(s: Scene) -> None:
    await s.forget()
    for route in ("a", "b", "c"):
        s.provider.behave(route, "429", retry_after_s=None)
    s.provider.behave("c", "ok")
    done = s.daemon.log().count("rescue.done")
    await s.types("/compact")
    with anyio.fail_after(HANG_S):
        while s.daemon.log().count("rescue.done") == done:
            await anyio.sleep(0.1)
    await s.provider.called("c", where=lambda one: one.kind == "aux")
    assert [one for route in "abc" for one in s.provider.calls(route, kind="main")] == []
    await s.hides("interrupt")
    await s.shows("say pong")


async def esc_ends_a_rescue(s: Scene) -> None:
    await s.forget()
    for route in ("a", "b", "c"):
        s.provider.behave(route, "429", retry_after_s=None)
    s.socket.hold("/abort")
    await s.types("once more")
    await s.socket.reached()
    asked = {one.route for one in s.provider.log if one.kind == "main"}
    s.presses("Escape")
    await s.shows("again to interrupt")
    s.presses("Escape")
    await s.hides("interrupt")
    s.socket.release()
    await s.logged("rescue.stopped")
    assert {one.route for one in s.provider.log if one.kind == "main"} == asked
    assert (await s.session())["rescue"] is None
