"""The servers that are known: announced, remembered, found again."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.support.clock import ManualClock
from tests.support.opencode import DIRECTORY, OpencodeDouble, WhoseDouble
from tests.support.playbook import policy_of
from tests.support.running_engine import engine_in, settings, until
from tests.support.watching import NoFiles
from tests.support.wires import each_wire, linked, only_version_1

from fallbackd.api.host import BadServer, NotWatched
from fallbackd.engine.api import Engine
from fallbackd.fronts.opencode.front import FORGET_S, MAX_SERVERS, OpencodeFront
from fallbackd.ports.opencode import Called, Heard, Link
from fallbackd.stores.memory import MemoryStore

__all__ = ["each_wire"]
pytestmark = pytest.mark.usefixtures("each_wire")

URL = "http://127.0.0.1:4096"


@asynccontextmanager
async def front(
    place: Path,
    store: MemoryStore | None = None,
    *,
    servers: dict[str, OpencodeDouble] | None = None,
    configured: Mapping[str, str | None] | None = None,
    clock: ManualClock | None = None,
    whose: WhoseDouble | None = None,
) -> AsyncIterator[tuple[OpencodeFront, dict[str, OpencodeDouble], Engine]]:
    servers = {} if servers is None else servers

    def open_link(url: str, *, password: str | None) -> Link:
        server = servers.setdefault(url, OpencodeDouble(url))
        server.passwords.append(password)
        return linked(server)

    config = structs.replace(settings(), policy=policy_of(roles={"build": ["b/m"]}))
    async with engine_in(place, config, store=store or MemoryStore(), clock=clock) as engine:
        found = OpencodeFront(engine, open_link, NoFiles(), whose or WhoseDouble())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.run, configured or {})
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


async def test_a_configuration_without_a_password_leaves_the_announced_one(
    tmp_path: Path,
) -> None:
    async with front(tmp_path) as (f, servers, _):
        await f.announce(URL, password="hunter2")
        await until(lambda: f.states()[0].is_up)
        f.configure({URL: None})
        assert f.states()[0].is_up
        assert servers[URL].passwords == ["hunter2"]
        f.configure({URL: "another"})
        assert servers[URL].passwords == ["hunter2", "another"]


async def test_a_server_that_is_remembered_does_not_take_the_place_of_a_configured_one(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with front(tmp_path, store) as (f, _, _):
        await f.announce(URL, password=None)
    async with front(tmp_path, store, configured={URL: "hunter2"}) as (f, servers, _):
        await until(lambda: f.states() and f.states()[0].is_up)
        assert servers[URL].passwords == ["hunter2"]
        assert not f.states()[0].is_announced


def down(url: str) -> OpencodeDouble:
    server = OpencodeDouble(url)
    server.is_down = True
    return server


async def test_a_new_server_takes_the_place_of_the_one_that_is_gone_for_longest(
    tmp_path: Path,
) -> None:
    urls = [f"http://127.0.0.1:{5000 + number}" for number in range(MAX_SERVERS)]
    clock = ManualClock()
    gone = {url: down(url) for url in urls[1:]}
    async with front(tmp_path, servers=gone, clock=clock) as (f, _, _):
        for url in urls:
            await f.announce(url, password=None)
            clock.advance(1)
        await until(lambda: f.states()[0].is_up)
        await f.announce(urls[1], password=None)  # it still says that it is there
        await f.announce(URL, password=None)
        left = [one.url for one in f.states()]
        assert len(left) == MAX_SERVERS
        assert urls[2] not in left
        assert {urls[0], urls[1], URL} <= set(left)


async def test_a_server_that_is_gone_for_a_day_is_forgotten_and_one_that_is_up_is_not(
    tmp_path: Path,
) -> None:
    store, clock = MemoryStore(), ManualClock()
    other = "http://127.0.0.1:5000"
    async with front(tmp_path, store, servers={other: down(other)}, clock=clock) as (f, _, engine):
        await f.announce(URL, password=None)
        await f.announce(other, password=None)
        await until(lambda: f.states()[0].is_up)
        clock.advance(FORGET_S - 3600)
        await f.forget()
        assert len(f.states()) == 2
        clock.advance(7200)
        seen_at = clock.now()
        await f.forget()
        assert [one.url for one in f.states()] == [URL]
        remembered = json.loads(await engine.store.get_meta("opencode_servers") or "")
        assert list(remembered) == [URL]
        assert remembered[URL] >= seen_at


@only_version_1
async def test_a_server_of_a_later_version_is_named_and_asked_less_and_less(
    tmp_path: Path,
) -> None:
    asked: list[float] = []
    server = OpencodeDouble(URL)
    why = "opencode 2.1.4 is not supported yet"
    body = {"version": "2.1.4"}
    server.answers["/global/health"] = Called(
        status=505, body=body, problem=why, is_unsupported=True
    )
    server.on_call = lambda path: asked.append(anyio.current_time())
    with capture_logs() as logs:
        async with front(tmp_path, servers={URL: server}, configured={URL: None}) as (f, _, _):
            await until(lambda: len(asked) == 4)
            (state,) = f.states()
            assert (state.is_up, state.is_refused, state.version) == (False, True, "2.1.4")
            assert state.problem == why
    waits = [after - before for before, after in pairwise(asked)]
    assert [wait >= least for wait, least in zip(waits, (0.2, 0.4, 0.8), strict=True)] == [True] * 3
    assert [one["event"] for one in logs if one["event"].startswith("server.")] == [
        "server.refused"
    ]


async def test_a_server_whose_events_end_at_once_is_asked_less_and_less(tmp_path: Path) -> None:
    asked: list[float] = []

    async def none() -> AsyncIterator[Heard]:
        asked.append(anyio.current_time())
        return
        yield

    server = OpencodeDouble(URL)
    server.events = none  # type: ignore[method-assign,assignment]
    async with front(tmp_path, servers={URL: server}, configured={URL: None}):
        await until(lambda: len(asked) == 4)
    waits = [after - before for before, after in pairwise(asked)]
    assert [wait >= least for wait, least in zip(waits, (0.2, 0.4, 0.8), strict=True)] == [True] * 3


@only_version_1
async def test_a_session_that_nobody_knows_is_found_in_the_directory_that_was_announced(
    tmp_path: Path,
) -> None:
    server = OpencodeDouble(URL)
    server.only_in = "/elsewhere"
    server.begins("ses_1", "m1", "a/m")
    server.retries("ses_1", "Too many requests")
    async with front(tmp_path, servers={URL: server}) as (f, _, _):
        await f.announce(URL, password=None)
        await until(lambda: f.states()[0].is_up)
        assert server.prompts == []
        assert await f.announce(URL, password=None, directory="/elsewhere")
        await until(lambda: server.prompts)


OTHER = "http://127.0.0.1:5000"


async def left_at_revert(place: Path, store: MemoryStore, server: OpencodeDouble) -> None:
    """A rescue that an earlier daemon has begun."""

    def go_down(path: str) -> None:
        server.is_down = server.is_down or path.endswith("/revert")

    async with front(place, store, servers={URL: server}) as (f, _, _):
        await f.announce(URL, password=None)
        await until(lambda: f.states()[0].is_up)
        server.on_call = go_down
        server.begins("ses_1", "m1", "a/m")
        server.retries("ses_1", "Too many requests")
        await until(lambda: server.is_down)
    server.on_call = lambda _: None


def second_of(server: OpencodeDouble) -> OpencodeDouble:
    """Another server of the same user."""
    found = OpencodeDouble(OTHER)
    found.sessions, found.messages = server.sessions, server.messages
    return found


async def test_a_rescue_goes_on_at_the_server_that_it_was_begun_at(tmp_path: Path) -> None:
    store, server = MemoryStore(), OpencodeDouble(URL)
    await left_at_revert(tmp_path, store, server)
    server.is_down = False
    servers = {URL: server, OTHER: second_of(server)}
    known: dict[str, str | None] = dict.fromkeys(servers)
    with capture_logs() as logs:
        async with front(tmp_path, store, servers=servers, configured=known):
            await until(lambda: server.prompts)
    assert servers[OTHER].calls == []
    assert [one["event"] for one in logs].count("rescue.resumed") == 1


async def test_a_rescue_goes_on_in_no_other_process_where_its_own_is_gone(tmp_path: Path) -> None:
    store, server, clock = MemoryStore(), OpencodeDouble(URL), ManualClock()
    await left_at_revert(tmp_path, store, server)
    servers = {URL: server, OTHER: second_of(server)}
    known: dict[str, str | None] = dict.fromkeys(servers)
    async with front(tmp_path, store, servers=servers, configured=known, clock=clock) as (f, _, e):
        await until(lambda: any(one.is_up for one in f.states()))
        second = f._watches[OTHER]
        assert second.sessions is not None
        await second._catch_up(second.sessions)
        clock.advance(61)
        await f.expire()
        assert servers[OTHER].calls == []
        assert (await e.session("ses_1")).rescue is None


ATTEMPT = 4001


async def test_the_server_of_an_attempt_is_not_watched_however_it_is_named(tmp_path: Path) -> None:
    whose = WhoseDouble()
    whose.listeners, whose.owners = {URL: ATTEMPT}, {ATTEMPT: "engine"}
    server = OpencodeDouble(URL)
    async with front(tmp_path, servers={URL: server}, whose=whose) as (f, _, _):
        with pytest.raises(NotWatched, match="works for a delegation"):
            await f.announce(URL, password=None)
        assert f.states() == []
        f.configure({URL: None})
        await until(lambda: f.states()[0].problem)
        assert not f.states()[0].is_up
        server.begins("ses_1", "m1", "a/m")
        server.retries("ses_1", "Too many requests")
        assert server.calls == []


async def test_a_model_that_is_back_is_told_once_and_not_in_every_session(tmp_path: Path) -> None:
    server, clock = OpencodeDouble(URL), ManualClock()
    names = [f"ses_{number}" for number in range(5)]
    async with front(tmp_path, servers={URL: server}, clock=clock) as (f, _, engine):
        await f.announce(URL, password=None)
        await until(lambda: f.states() and f.states()[0].is_up)
        told: list[str] = []
        engine.subscribe(
            lambda one: told.append(str(getattr(one, "note", one).fields.get("notice")))  # type: ignore[union-attr]
        )
        for number, name in enumerate(names):
            server.begins(name, f"msg_1f9b9605{number:04d}aaaaaaaaaaaaaaaa", "a/m")
            server.retries(name, "Too many requests")
        await until(lambda: told.count("fallback") == 5)
        clock.advance(20_000)
        for name in names:
            server.answers_with(name)
        await until(lambda: told.count("recovered") == 5)
        await until(lambda: len(server.toasts) == 2)
        assert server.toasts.count("m [a] is available again") == 1


async def test_a_rescue_whose_server_stays_away_is_left_to_the_user(tmp_path: Path) -> None:
    store, server = MemoryStore(), OpencodeDouble(URL)
    await left_at_revert(tmp_path, store, server)
    clock = ManualClock()
    clock.advance(30)
    async with front(tmp_path, store, servers={URL: server}, clock=clock) as (f, _, engine):
        await f.expire()
        left = await engine.session("ses_1")
        assert left.rescue is not None
        clock.advance(60)
        await f.expire()
        assert (await engine.session("ses_1")).rescue is None


async def test_sessions_that_fail_at_once_are_announced_by_one_toast(tmp_path: Path) -> None:
    server, clock = OpencodeDouble(URL), ManualClock()
    async with front(tmp_path, servers={URL: server}, clock=clock) as (f, _, _):
        await f.announce(URL, password=None)
        await until(lambda: f.states() and f.states()[0].is_up)

        async def rescued(name: str, number: int) -> None:
            done = len(server.prompts) + 1
            server.begins(name, f"msg_1f9b9605{number:04d}aaaaaaaaaaaaaaaa", "a/m")
            server.retries(name, "Too many requests")
            await until(lambda: len(server.prompts) == done)

        for number in range(10):
            await rescued(f"ses_{number}", number)
        await until(lambda: server.toasts)
        clock.advance(6)  # it is no longer on the screen
        await rescued("ses_10", 10)
        await until(lambda: len(server.toasts) > 1)
        assert server.toasts == ["switched from m [a] to m [b] (rate_limit)"] * 2


async def test_a_password_that_has_changed_is_said_and_a_rescue_goes_on_with_the_next_one(
    tmp_path: Path,
) -> None:
    store, server = MemoryStore(), OpencodeDouble(URL)
    await left_at_revert(tmp_path, store, server)
    server.is_down = False
    server.answers["/global/health"] = Called(status=401, problem="HTTP 401")
    async with front(tmp_path, store, servers={URL: server}) as (f, _, engine):
        await until(lambda: f.states() and f.states()[0].is_refused)
        assert f.states()[0].problem == "HTTP 401: it wants a password that is not known here"
        assert server.prompts == []
        del server.answers["/global/health"]
        await f.announce(URL, password="the next one")
        await until(lambda: server.prompts)
        assert server.passwords[-1] == "the next one"
        await until(lambda: server.toasts)
        assert [one["model"]["providerID"] for one in server.prompts] == ["b"]
        assert (await engine.session("ses_1")).rescue is None


@only_version_1
async def test_servers_of_both_versions_are_followed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = OpencodeDouble(URL), OpencodeDouble(OTHER)
    async with front(tmp_path, servers={URL: first, OTHER: second}) as (f, _, engine):
        await f.announce(URL, password=None)
        monkeypatch.setattr("tests.support.wires.chosen", "second")
        await f.announce(OTHER, password="pw")
        await until(lambda: len(f.states()) == 2 and all(one.is_up for one in f.states()))
        assert [one.version for one in f.states()] == ["1.18.33", "2.1.2"]
        for name, server in (("ses_1", first), ("ses_2", second)):
            server.event("session.never-heard-of", sessionID=name, x=7)
            server.begins(name, "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m")
            server.retries(name, "Too many requests")
            await until(lambda server=server: server.prompts)  # type: ignore[misc]
        assert [one.current for one in [await engine.session("ses_2")]] == ["b/m"]
