"""The servers that are known: announced, remembered, found again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec import structs
from tests.support.opencode import DIRECTORY, OpencodeDouble
from tests.support.playbook import policy_of
from tests.support.running_engine import engine_in, settings, until
from tests.support.watching import NoFiles

from fallbackd.engine.loop import Engine
from fallbackd.fronts.opencode.front import BadServer, OpencodeFront
from fallbackd.stores.memory import MemoryStore

URL = "http://127.0.0.1:4096"


@asynccontextmanager
async def front(
    place: Path, store: MemoryStore | None = None
) -> AsyncIterator[tuple[OpencodeFront, dict[str, OpencodeDouble], Engine]]:
    servers: dict[str, OpencodeDouble] = {}

    def open_link(url: str, *, password: str | None) -> OpencodeDouble:
        return servers.setdefault(url, OpencodeDouble(url))

    config = structs.replace(settings(), policy=policy_of(roles={"build": ["b/m"]}))
    async with engine_in(place, config, store=store or MemoryStore()) as engine:
        found = OpencodeFront(engine, open_link, NoFiles())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.run, {})
            await anyio.lowlevel.checkpoint()
            yield found, servers, engine
            tasks.cancel_scope.cancel()


async def test_a_server_that_announces_itself_is_followed_and_its_sessions_rescued(
    tmp_path: Path,
) -> None:
    async with front(tmp_path) as (f, servers, _):
        assert not await f.announce(URL + "/", password=None)
        await until(lambda: f.states() and f.states()[0].is_up)
        assert await f.announce(URL, password=None)
        server = servers[URL]
        server.begins("ses_1", "m1", "a/m")
        server.retries("ses_1", "Too many requests")
        await until(lambda: server.toasts)
        assert server.toasts == ["switched from m [a] to m [b] (rate_limit)"]
        assert len(server.prompts) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com:4096",
        "https://127.0.0.1:4096",
        "http://127.0.0.1",
        "http://user:secret@127.0.0.1:4096",
        "http://127.0.0.1:4096/path",
        "http://127.0.0.1:99999",
        "file:///etc/passwd",
        "",
    ],
)
async def test_only_servers_of_this_machine_can_announce_themselves(
    tmp_path: Path, url: str
) -> None:
    async with front(tmp_path) as (f, servers, _):
        with pytest.raises(BadServer, match="on this machine"):
            await f.announce(url, password=None)
        assert servers == {}


async def test_a_later_daemon_finds_the_server_again_but_knows_no_password(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with front(tmp_path, store) as (f, _, engine):
        await f.announce(URL, password="hunter2")
        for key in ("opencode_servers",):
            assert "hunter2" not in (await engine.store.get_meta(key) or "")
    async with front(tmp_path, store) as (f, _, _):
        await until(lambda: f.states() and f.states()[0].is_up)
        assert [one.url for one in f.states()] == [URL]


async def test_a_server_that_the_configuration_drops_is_left_alone(tmp_path: Path) -> None:
    async with front(tmp_path) as (f, _, _):
        f.configure({URL: None})
        await until(lambda: f.states() and f.states()[0].is_up)
        f.configure({})
        assert f.states() == []


async def test_a_message_is_redirected_by_what_every_server_has_seen(tmp_path: Path) -> None:
    async with front(tmp_path) as (f, servers, _):
        await f.announce(URL, password=None)
        await until(lambda: f.states() and f.states()[0].is_up)
        servers[URL].begins("ses_1", "m1", "a/m")
        servers[URL].retries("ses_1", "Too many requests")
        await until(lambda: servers[URL].prompts)
        found = await f.redirect(
            server="http://127.0.0.1:5000",
            session="ses_2",
            directory=DIRECTORY,
            agent="build",
            model="a/m",
        )
        assert found.model == "b/m"
