"""All opencode servers that are known: by configuration, or because they announced themselves."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from msgspec import structs

from fallbackd.api.host import BadServer, NotWatched, ServerState, is_usable
from fallbackd.core.decision import Journaled
from fallbackd.core.opencode.turns import Redirect
from fallbackd.engine.api import Engine
from fallbackd.engine.live import Progress
from fallbackd.engine.opencode import Watched, Where
from fallbackd.fronts.opencode.sessions import ServerWatch
from fallbackd.lib import foreign_json
from fallbackd.ports.opencode import INSIDE, Called, Heard, Link, OpenLink, ProjectFiles, Whose

# --- notices in the interface --------------------------------------------------------------------
# Notices of sessions, as short messages in the interface of their opencode server.

log = structlog.get_logger("opencode")

_SHOWN = {
    "fallback": ("Model fallback", "warning", 6000),
    "recovered": ("Model recovered", "info", 5000),
    "outage": ("No model available", "error", 10_000),
    "failed": ("Model fallback failed", "error", 15_000),
}
"""Title, kind and milliseconds by notice."""
_LONGEST_S = max(ms for *_, ms in _SHOWN.values()) / 1000
_LEVELS = {"warning": "warn", "info": "info", "error": "error"}


class Notice:
    def __init__(self, told: Journaled, *, now: float) -> None:
        fields = told.note.fields
        self.at = now
        self.session = told.note.session or ""
        self.kind = str(fields.get("notice"))
        self.left = str(fields.get("from") or "")
        self.to = str(fields.get("to") or "")
        self.title, self.variant, self.duration_ms = _SHOWN.get(self.kind, _SHOWN["fallback"])
        self.text = str(fields.get("text") or "")


def notice_of(told: Journaled | Progress, *, now: float) -> Notice | None:
    if isinstance(told, Progress) or told.note.kind != "session.notice":
        return None
    return Notice(told, now=now)


class Toasts:
    """
    Tells which notices are shown: many sessions of a server have the same one at once, and a
    toast that is still on the screen says it for all of them.
    """

    def __init__(self) -> None:
        self._recovered: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, ...], tuple[str, float]] = {}
        """Session and end of the last toast, by server, directory and what it says."""

    def is_news(self, server: str, directory: str, notice: Notice) -> bool:
        """A recovery is shown once per server and model, until the model is left again."""
        if notice.kind == "fallback":
            self._recovered = {one for one in self._recovered if one[1] != notice.left}
        if notice.kind == "recovered":
            is_news = (server, notice.to) not in self._recovered
            self._recovered.add((server, notice.to))
            return is_news
        latest_at = notice.at + _LONGEST_S  # a clock that was set back leaves later ends
        self._shown = {k: one for k, one in self._shown.items() if notice.at < one[1] <= latest_at}
        words = notice.text if notice.kind == "failed" else ""  # others state how long it takes
        key = (server, directory, notice.kind, notice.left, notice.to, words)
        until_at = notice.at + notice.duration_ms / 1000
        session, _ = self._shown.setdefault(key, (notice.session, until_at))
        return session == notice.session

    def forget(self, server: str) -> None:
        self._recovered = {one for one in self._recovered if one[0] != server}
        self._shown = {key: one for key, one in self._shown.items() if key[0] != server}


async def show(link: Link, directory: str, notice: Notice) -> None:
    """A server without an interface accepts it as well, but does not show it."""
    body = {
        "title": notice.title,
        "message": notice.text,
        "variant": notice.variant,
        "duration": notice.duration_ms,
    }
    called = await link.call("POST", "/tui/show-toast", body=body, directory=directory)
    if not called.is_good:
        log.info("notice.unshown", server=link.url, problem=called.problem)


async def write_down(link: Link, directory: str, notice: Notice) -> None:
    """Put it into the log of the server, for each session."""
    line = {
        "service": "fallbackd",
        "level": _LEVELS[notice.variant],
        "message": notice.text,
        "extra": {"session": notice.session},
    }
    await link.call("POST", "/log", body=line, directory=directory)


# --- servers reached through their plugin --------------------------------------------------------
# An opencode that listens on no port, reached through its plugin.
#
# The plugin sends the events of its opencode over the connection on which it announced it, and
# makes our calls there with its own client. A call and its answer carry a number; an answer comes
# in pieces, as a line is shorter than what a long session holds.

MAX_WAITING_EVENTS = 10_000
RESPONSE = "fallbackd.response"
"""An event of our plugin: what the headers of a provider's answer say of limits."""
RESPONSE_S = 60.0
"""Age at which such an answer is no longer that of the failure that an event names."""
MAX_RESPONSES = 200
MAX_HEADERS = 40
MAX_HEADER_CHARS = 500
MAX_ANSWER_CHARS = 256 * 1024 * 1024
LOST = "the connection to its plugin was lost"

TellPlugin = Callable[[Mapping[str, Any]], None]
"""Sends one call to the plugin: `{call, method, path, directory, body}`."""


class _Call:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.chars = 0
        self.answer: Called | None = None
        self.is_over = anyio.Event()


class PluginLink:
    is_inside = True

    def __init__(self, name: str, tell: TellPlugin, *, pid: int | None = None) -> None:
        self.url = name
        self.pid = pid
        self._tell = tell
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._is_open = True
        self._events: MemoryObjectSendStream[Heard] | None = None
        self._responses: dict[str, tuple[float, dict[str, str]]] = {}

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self._is_open = False
        for waiting in self._calls.values():
            waiting.is_over.set()
        self._end_events()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        if not self._is_open:
            return Called(status=0, problem=LOST)
        self._last += 1
        number, waiting = self._last, _Call()
        self._calls[number] = waiting
        try:
            self._tell(
                {
                    "call": number,
                    "method": method,
                    "path": path,
                    "directory": directory,
                    "body": body,
                }
            )
            with anyio.fail_after(limit_s):
                await waiting.is_over.wait()
        except TimeoutError:
            return Called(status=0, problem=f"no answer within {limit_s:g} s")
        finally:
            del self._calls[number]
        return waiting.answer or Called(status=0, problem=LOST)

    def answered(self, call: int, *, status: int, text: str, more: bool) -> None:
        """Take one piece of an answer; the call may have been given up."""
        waiting = self._calls.get(call)
        if waiting is None or waiting.is_over.is_set():
            return
        waiting.pieces.append(text)
        waiting.chars += len(text)
        if waiting.chars > MAX_ANSWER_CHARS:
            waiting.answer = Called(status=502, problem="an answer that is too long")
        elif more:
            return
        else:
            waiting.answer = _called(status, "".join(waiting.pieces))
        waiting.is_over.set()

    def hear(self, event: Mapping[str, Any], *, directory: str) -> None:
        if event.get("type") == RESPONSE:
            self._note_response(foreign_json.fields(event.get("properties")))
            return
        if self._events is None:
            return
        try:
            self._events.send_nowait(Heard(directory=directory, event=event))
        except anyio.WouldBlock:
            self._end_events()  # what is missed then is looked up
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._events = None

    def _note_response(self, said: Mapping[str, Any]) -> None:
        headers = {
            name.lower(): value
            for name, value in list(foreign_json.fields(said.get("headers")).items())[:MAX_HEADERS]
            if isinstance(value, str) and len(name) + len(value) <= MAX_HEADER_CHARS
        }
        self._responses[foreign_json.text(said.get("sessionID"))] = anyio.current_time(), headers
        while len(self._responses) > MAX_RESPONSES:
            self._responses.pop(next(iter(self._responses)))

    def response_of(self, session: str) -> Mapping[str, str]:
        """Take the headers of a session's last refusal, which are of one failure alone."""
        at, headers = self._responses.pop(session, (0.0, {}))
        return headers if anyio.current_time() - at < RESPONSE_S else {}

    async def events(self) -> AsyncGenerator[Heard, None]:
        if not self._is_open:
            return
        self._end_events()
        send, receive = anyio.create_memory_object_stream[Heard](MAX_WAITING_EVENTS)
        self._events = send
        yield Heard(directory="", event={"type": "server.connected", "properties": {}})
        async with receive:
            async for heard in receive:
                yield heard

    def _end_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()


class LinkWithPlugins:
    """A server that has an address, and plugins that do what can only be done inside of it."""

    def __init__(self, link: Link, plugins: Callable[[], Sequence[PluginLink]]) -> None:
        self._link = link
        self._plugins = plugins
        """One for each directory that it works in."""

    @property
    def url(self) -> str:
        return self._link.url

    @property
    def pid(self) -> int | None:
        return self._link.pid

    @property
    def is_inside(self) -> bool:
        return bool(self._plugins())

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        if not path.startswith(INSIDE):
            return await self._link.call(
                method, path, body=body, directory=directory, limit_s=limit_s
            )
        found = Called(status=0, problem=LOST)
        for plugin in self._plugins():
            called = await plugin.call(
                method, path, body=body, directory=directory, limit_s=limit_s
            )
            found = called if called.is_good or not found.is_good else found
        return found

    async def events(self) -> AsyncGenerator[Heard, None]:
        async with aclosing(self._link.events()) as events:
            async for heard in events:
                yield structs.replace(heard, event=self._with_headers(heard.event))

    def _with_headers(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the headers of the provider's answer to a failure that says no headers."""
        said = foreign_json.fields(event.get("properties"))
        status = foreign_json.fields(said.get("status"))
        is_error = event.get("type") == "session.error"
        error = foreign_json.fields((said if is_error else status).get("error"))
        if not error:
            return event
        session = foreign_json.text(said.get("sessionID"))
        found = [one.response_of(session) for one in self._plugins()]
        headers = {name: value for one in found for name, value in one.items()}
        data = foreign_json.fields(error.get("data"))
        known = foreign_json.fields(data.get("responseHeaders"))
        error = {**error, "data": {**data, "responseHeaders": {**headers, **known}}}
        more = {"error": error} if is_error else {"status": {**status, "error": error}}
        return {**event, "properties": {**said, **more}} if headers else event

    async def aclose(self) -> None:
        await self._link.aclose()


def _called(status: int, text: str) -> Called:
    try:
        body = foreign_json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError):
        body = None
        if 200 <= status < 300:
            return Called(status=502, problem="an answer that cannot be read")
    if 200 <= status < 300:
        return Called(status=status, body=body)
    return Called(status=status, body=body, problem=f"HTTP {status}" if status else text or LOST)


# --- all servers ---------------------------------------------------------------------------------

ANNOUNCED_KEY = "opencode_servers"
MAX_SERVERS = 100
FORGET_S = 24 * 3600.0
"""A server that announced itself and was not seen for so long is forgotten."""
EXPIRE_EVERY_S = 60.0
EXPIRES_PER_FORGET = 10


class OpencodeFront:
    def __init__(
        self, engine: Engine, open_link: OpenLink, files: ProjectFiles, whose: Whose
    ) -> None:
        self.watched = Watched(engine)
        self._engine = engine
        self._open_link = open_link
        self._files = files
        self._whose = whose
        self._watches: dict[str, ServerWatch] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._passwords: dict[str, str | None] = {}
        self._configured: frozenset[str] = frozenset()
        self._toasts = Toasts()
        self._attached: dict[int, PluginLink] = {}
        """Links by the connection on which a plugin serves it, or helps where it has an address."""
        self._tasks: TaskGroup | None = None

    # --- life ----------------------------------------------------------------------------------

    async def run(self, servers: Mapping[str, str | None]) -> None:
        """
        Run until cancelled.

        Args:
            servers: Configured addresses, each with its password.
        """
        stop_hearing = self._engine.subscribe(
            lambda told: (
                self._tell(notice) if (notice := notice_of(told, now=self.watched.now)) else None
            )
        )
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self.configure(servers)
                for url, seen_at in (await self._remembered()).items():
                    if url not in self._watches:
                        self._add(url, None, is_announced=True, seen_at=seen_at)
                while True:
                    for _ in range(EXPIRES_PER_FORGET):
                        await anyio.sleep(EXPIRE_EVERY_S)
                        await self.expire()
                    await self.forget()
        finally:
            self._tasks = None
            stop_hearing()

    def configure(self, servers: Mapping[str, str | None]) -> None:
        """The configuration has another list of servers."""
        wanted = {url.rstrip("/"): password for url, password in servers.items()}
        for url in self._configured - set(wanted):
            self._drop(url)
        self._configured = frozenset(wanted)
        for url, password in wanted.items():
            self._add(url, password, is_announced=False)

    def states(self) -> Sequence[ServerState]:
        return [
            ServerState(
                url=one.url,
                is_up=one.is_up,
                is_announced=one.is_announced,
                version=one.version,
                problem=one.problem,
                is_refused=one.is_refused,
            )
            for one in self._watches.values()
        ]

    # --- servers -------------------------------------------------------------------------------

    async def announce(self, url: str, *, password: str | None, directory: str = "") -> bool:
        """
        A server says that it is there.

        Args:
            directory: In which it has sessions.

        Returns:
            Whether it was known already.

        Raises:
            BadServer: Not on this machine, or too many of them.
            NotWatched: It works for an attempt.
        """
        url = checked_url(url)
        server = await to_thread.run_sync(self._whose.server_at, url)
        if self._whose.owner(server) == "engine":
            raise NotWatched
        known = self._watches.get(url)
        is_same = known is not None and (password is None or self._passwords.get(url) == password)
        if known is not None and is_same:
            if not known.is_up:
                known.look_now()
            known.works_in(directory)
            return True
        if known is None and len(self._watches) >= MAX_SERVERS:
            self._make_room()
        is_announced = url not in self._configured
        self._add(url, password, is_announced=is_announced)
        self._watches[url].works_in(directory)
        if is_announced:
            await self._remember()
        log.info("server.announced", server=url)
        return False

    def attach(
        self,
        name: str,
        connection: int,
        tell: TellPlugin,
        *,
        directory: str,
        pid: int | None = None,
    ) -> bool:
        """
        An opencode that cannot be called is there, and its plugin is at the other end of a
        connection.

        Returns:
            Whether it was not attached already.

        Raises:
            BadServer: Too many of them.
        """
        if connection in self._attached:
            return False
        if name in self._watches:  # its plugin has connected anew before we missed it
            self._drop(name)
        if len(self._watches) >= MAX_SERVERS:
            self._make_room()
        link = self._attached[connection] = PluginLink(name, tell, pid=pid)
        watch = self._watched_at(link, is_announced=True)
        watch.works_in(directory)
        self._begin(watch)
        log.info("server.attached", server=name)
        return True

    def enter(self, url: str, connection: int, tell: TellPlugin) -> bool:
        """
        A server that has an address has a plugin too, at the other end of a connection.

        Returns:
            Whether it was not known already.
        """
        is_new = connection not in self._attached
        if is_new:
            self._attached[connection] = PluginLink(url.rstrip("/"), tell)
        return is_new

    def attached(self, connection: int) -> PluginLink | None:
        return self._attached.get(connection)

    def detach(self, name: str, connection: int) -> None:
        """The connection has closed, and the opencode with it, or the plugin connects anew."""
        link = self._attached.pop(connection, None)
        if link is None:
            return
        link.close()
        known = self._watches.get(name)
        if known is not None and known.link is link:
            self._drop(name)
            log.info("server.detached", server=name)

    def _make_room(self) -> None:
        """
        Raises:
            BadServer: All of them are up, or configured.
        """
        gone = [one for one in self._watches.values() if one.is_announced and not one.is_up]
        if not gone:
            raise BadServer(f"{MAX_SERVERS} opencode servers are known already")
        self._drop(min(gone, key=lambda one: one.seen_at).url)

    async def expire(self) -> None:
        """End the rescues whose servers have been away for too long."""
        for session in await self.watched.unfinished():
            watch = self._watches.get(session.server)
            if session.rescue is not None and not (watch and watch.is_up):
                await self.watched.advance(session.session, session.rescue.id, "resumed")

    async def forget(self) -> None:
        """Let go of announced servers that were not seen for long, also in the records."""
        before = self.watched.now - FORGET_S
        for one in list(self._watches.values()):
            if one.is_announced and not one.is_up and one.seen_at < before:
                self._drop(one.url)
                log.info("server.forgotten", server=one.url)
        await self._remember()

    def _add(
        self, url: str, password: str | None, *, is_announced: bool, seen_at: float | None = None
    ) -> None:
        """Add a server. Without a password the known one is kept: it was announced."""
        known = self._watches.get(url)
        if known is not None:
            if password is None or self._passwords.get(url) == password:
                known.is_announced = known.is_announced and is_announced
                return
            self._drop(url)
        directories = () if known is None else known.directories
        link = LinkWithPlugins(
            self._open_link(url, password=password),
            lambda: [one for one in self._attached.values() if one.url == url],
        )
        watch = self._watched_at(link, is_announced=is_announced, seen_at=seen_at)
        for directory in directories:
            watch.works_in(directory)
        self._passwords[url] = password
        self._begin(watch)

    def _watched_at(
        self, link: Link, *, is_announced: bool, seen_at: float | None = None
    ) -> ServerWatch:
        return ServerWatch(
            self.watched,
            link,
            self._files,
            self._whose,
            is_announced=is_announced,
            seen_at=self.watched.now if seen_at is None else seen_at,
        )

    def _begin(self, watch: ServerWatch) -> None:
        self._watches[watch.url] = watch
        if self._tasks is not None:
            scope = self._scopes[watch.url] = anyio.CancelScope()
            self._tasks.start_soon(self._watch, watch, scope)

    async def _watch(self, watch: ServerWatch, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await watch.run()
            finally:
                with anyio.CancelScope(shield=True):
                    await watch.link.aclose()

    def _drop(self, url: str) -> None:
        self._watches.pop(url, None)
        self._passwords.pop(url, None)
        self._toasts.forget(url)
        scope = self._scopes.pop(url, None)
        if scope is not None:
            scope.cancel()

    async def _remembered(self) -> dict[str, float]:
        """Addresses only: passwords are not kept, and come again with the next announcement."""
        text = await self._engine.store.get_meta(ANNOUNCED_KEY)
        try:
            found = json.loads(text or "{}")
        except ValueError:
            return {}
        now = self.watched.now
        urls = found.items() if isinstance(found, dict) else ()
        usable = [
            (url, float(at))
            for url, at in urls
            if isinstance(at, int | float) and now - at < FORGET_S and is_usable(url)
        ]
        return dict(usable[:MAX_SERVERS])

    async def _remember(self) -> None:
        now = self.watched.now
        urls = {
            one.url: now if one.is_up else one.seen_at
            for one in self._watches.values()
            if one.is_announced and is_usable(one.url)
        }
        await self._engine.store.set_meta(ANNOUNCED_KEY, json.dumps(urls))

    # --- messages that are about to be sent ------------------------------------------------------

    async def redirect(
        self, *, server: str, session: str, directory: str, agent: str | None, model: str
    ) -> Redirect:
        if directory:
            await self._files.look(directory)
        where = Where(session=session, server=server.rstrip("/"), project=directory, agent=agent)
        return await self.watched.redirect(where, model=model)

    async def warned(self, directory: str) -> tuple[str, ...]:
        """List what cannot be used of the files that hold in a directory."""
        if directory:
            await self._files.look(directory)
        return self._files.warned(directory)

    # --- notices -------------------------------------------------------------------------------

    def _tell(self, notice: Notice) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._show, notice)

    async def _show(self, notice: Notice) -> None:
        try:
            session = await self.watched.session(notice.session)
            watch = None if session is None else self._watches.get(session.server)
            if session is None or watch is None or not watch.is_up:
                return
            sessions = watch.sessions
            found = "" if sessions is None else sessions.track(session.session).directory
            directory = found or session.project
            if self._toasts.is_news(watch.url, directory, notice):
                await show(watch.link, directory, notice)
            if notice.kind != "recovered":
                await write_down(watch.link, directory, notice)
        except Exception:  # a notice that fails must not stop a rescue
            log.exception("notice.broke", session=notice.session)


def checked_url(url: str) -> str:
    """
    Raises:
        BadServer: Not the address of a server on this machine.
    """
    if not is_usable(url):
        raise BadServer(
            f"{url[:100]!r} is not the address of a server on this machine; give one like"
            " http://127.0.0.1:4096, or put that of another machine into [opencode] servers"
        )
    return url.rstrip("/")
