"""A plugin of an opencode without a port, at the socket of a real daemon."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.support.daemon import Daemon, running
from tests.support.front import Peer
from tests.support.opencode import DIRECTORY, OpencodeDouble

HANG_S = 60.0
CONFIG = '[roles.build]\nchain = ["b/m"]\n'
MADE_UP = "http://localhost:4096"
PIECE_CHARS = 100


class Plugin:
    """Makes the calls of the daemon at a double, and passes its events on."""

    def __init__(self, peer: Peer, server: OpencodeDouble) -> None:
        self.peer = peer
        self.server = server
        self._events: list[dict[str, Any]] = []
        server.hear = self._events.append

    async def say(self, method: str, **params: Any) -> None:
        await self.peer.send(
            json.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + "\n"
        )

    async def pass_on(self) -> None:
        events, self._events[:] = list(self._events), []
        for event in events:
            await self.say("opencode.event", event=event, directory=DIRECTORY)

    async def work(self) -> None:
        while True:
            line = await self.peer.line()
            if line.get("method") == "opencode.call":
                await self._serve(line["params"])

    async def _serve(self, call: dict[str, Any]) -> None:
        called = await self.server.call(
            call["method"], call["path"], body=call["body"], directory=call["directory"]
        )
        text = "" if called.body is None else json.dumps(called.body)
        await self.pass_on()
        for at in range(0, max(1, len(text)), PIECE_CHARS):
            more = at + PIECE_CHARS < len(text)
            piece = text[at : at + PIECE_CHARS]
            await self.say(
                "opencode.answer", call=call["call"], status=called.status, text=piece, more=more
            )


@asynccontextmanager
async def plugin(socket: str, server: OpencodeDouble) -> AsyncIterator[Plugin]:
    async with await anyio.connect_unix(socket) as stream:
        peer = Peer(stream)
        await peer.ask(1, "opencode.announce", url=MADE_UP, directory=DIRECTORY, plugin=True)
        found = Plugin(peer, server)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.work)
            yield found
            tasks.cancel_scope.cancel()


async def test_an_opencode_without_a_port_is_watched_through_its_plugin(tmp_path: Path) -> None:
    server = OpencodeDouble()
    name = f"plugin:{os.getpid()}:{DIRECTORY}"
    with anyio.fail_after(HANG_S):
        async with running(tmp_path, CONFIG) as daemon:
            async with plugin(daemon.socket, server) as one:
                while "server.followed" not in daemon.log():
                    await anyio.sleep(0.01)
                server.begins("ses_1", "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m")
                server.retries("ses_1", "Too many requests")
                await one.pass_on()
                while not server.toasts:
                    await anyio.sleep(0.01)
                assert [prompt["model"]["providerID"] for prompt in server.prompts] == ["b"]
                found = await daemon.client.call("opencode.status")
                assert [(line["url"], line["up"]) for line in found["servers"]] == [(name, True)]
            while (await daemon.client.call("opencode.status"))["servers"]:
                await anyio.sleep(0.01)
            assert MADE_UP not in daemon.log()


async def test_a_server_that_its_plugin_can_be_reached_at_is_watched_there(tmp_path: Path) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    url = f"http://127.0.0.1:{port}"
    async with listener, running(tmp_path, CONFIG) as daemon:
        async with await anyio.connect_unix(daemon.socket) as stream:
            found = await Peer(stream).call("opencode.announce", url=url, plugin=True)
        assert (found["result"]["via"], found["result"]["url"]) == ("url", url)


async def announced(daemon: Daemon, directory: Path) -> tuple[bool, str]:
    async with await anyio.connect_unix(daemon.socket) as stream:
        params = {"url": MADE_UP, "directory": str(directory), "plugin": True}
        found = (await Peer(stream).call("opencode.announce", **params))["result"]
        return found["protected"], found["problem"] or ""


async def test_an_opencode_is_not_said_to_be_protected_where_no_chain_is_in_force(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as daemon:
        for name in ("nothing", "off", "broken", "chain"):
            (tmp_path / name / ".opencode").mkdir(parents=True)
        chain = {"agents": {"*": {"fallbackModels": ["b/m"]}}}
        files = {"off": json.dumps({"enabled": False, **chain}), "broken": "{"}
        for name, text in {**files, "chain": json.dumps(chain)}.items():
            (tmp_path / name / ".opencode" / "model-fallback.json").write_text(text)
        is_protected, problem = await announced(daemon, tmp_path / "nothing")
        assert (is_protected, problem.split(";")[0]) == (False, "no fallback chain is configured")
        is_protected, problem = await announced(daemon, tmp_path / "off")
        assert not is_protected
        assert problem.startswith("`enabled` is false")
        is_protected, problem = await announced(daemon, tmp_path / "broken")
        assert not is_protected
        assert "broken/.opencode/model-fallback.json: is not valid JSON" in problem
        assert await announced(daemon, tmp_path / "chain") == (True, "")
        for name, words in (("nothing", "enabled, but no fallback chain"), ("off", "disabled")):
            params = {"directory": str(tmp_path / name)}
            found = await daemon.client.call("opencode.status", params)
            assert f"**Fallback:** {words}" in found["text"]


async def test_a_broken_file_of_a_project_leaves_the_chain_of_the_user_in_force(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        (tmp_path / "broken" / ".opencode").mkdir(parents=True)
        (tmp_path / "broken" / ".opencode" / "model-fallback.json").write_text("{")
        is_protected, problem = await announced(daemon, tmp_path / "broken")
        assert is_protected
        assert "is not valid JSON" in problem


async def test_a_plugin_of_version_2_is_no_door_to_a_server_and_its_service_is_watched_by_address(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(HANG_S):
        async with (
            running(tmp_path, CONFIG) as daemon,
            await anyio.connect_unix(daemon.socket) as stream,
        ):
            peer = Peer(stream)
            asked = {"url": "http://127.0.0.1:9", "directory": DIRECTORY, "plugin": True}
            await peer.ask(1, "opencode.announce", version="2.1.4", **asked)
            found = (await peer.line())["result"]
            assert (found["via"], found["url"]) == ("url", "http://127.0.0.1:9")
            said = await daemon.client.call("opencode.status")
            assert [(one["url"], one["up"]) for one in said["servers"]] == [(found["url"], False)]
