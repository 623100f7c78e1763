"""A plugin of an opencode without a port, at the socket of a real daemon."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.support.daemon import running
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
