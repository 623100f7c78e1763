"""Sessions of a running `opencode serve`, kept alive by a daemon that watches it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct
from tests.e2e.clis import Home, build_home
from tests.e2e.opencode_server import Server, opencode, said
from tests.support.daemon import Daemon, running
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

HANG_S = 150.0

CONFIG = """
[policy.rate_limit]
window_s = 10
cooldown_s = 0
[opencode]
servers = ["{url}"]
[roles.build]
chain = ["b/m", "c/m"]
"""


class Scene(Struct, kw_only=True):
    provider: Provider
    server: Server
    daemon: Daemon
    home: Home

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.daemon.client.call(method, params)
        return found

    async def health(self, model: str) -> str:
        found = await self.call("health", action="get", target=model)
        return str(found["health"][model]["state"])

    async def followed(self) -> None:
        """The daemon hears what happens at the server."""
        with anyio.fail_after(HANG_S):
            while "server.followed" not in self.daemon.log():
                await anyio.sleep(0.05)


@asynccontextmanager
async def scene(tmp_path: Path, config: str = CONFIG, **knobs: Any) -> AsyncIterator[Scene]:
    with anyio.fail_after(2 * HANG_S):
        async with provider() as served:
            home = build_home(tmp_path, served, names=("opencode",))
            async with opencode(home, served, **knobs) as server:
                text = config.format(url=server.url)
                async with running(tmp_path, text, env=home.env) as daemon:
                    one = Scene(provider=served, server=server, daemon=daemon, home=home)
                    await one.followed()
                    yield one


def has_answer(text: str = TEXT) -> Any:
    def is_so(messages: list[dict[str, Any]]) -> bool:
        replies = [one for one in messages if one["info"]["role"] == "assistant"]
        return bool(replies) and replies[-1]["info"].get("finish") == "stop"

    return is_so


async def test_a_session_goes_on_with_the_next_model_where_the_first_is_throttled(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave("a", "429", retry_after_s=None)
        session = await s.server.session()
        await s.server.prompt(session, "a/m")
        messages = await s.server.until(session, has_answer())
        print(s.daemon.log())
        assert said(messages, "user") == [("b/m", "say pong")]
        assert said(messages, "assistant") == [("b/m", TEXT)]
        (b,) = s.provider.calls("b", kind="main")
        assert len([one for one in s.provider.calls("a") if one.at < b.at]) < 3
        assert await s.health("a/m") == "rate_limited"
