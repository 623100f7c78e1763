"""All opencode servers that are known: by configuration, or because they announced themselves."""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import anyio
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct

from fallbackd.core.decide_turns import Redirect
from fallbackd.engine.loop import Engine
from fallbackd.engine.watched import Watched, Where
from fallbackd.fronts.opencode.sessions import ProjectFiles
from fallbackd.fronts.opencode.telling import Notice, notice_of, show
from fallbackd.fronts.opencode.watch import Watch
from fallbackd.ports.opencode import OpenLink

log = structlog.get_logger("opencode")

ANNOUNCED_KEY = "opencode_servers"
MAX_SERVERS = 100
FORGET_S = 24 * 3600.0
"""A server that announced itself and was not seen for so long is forgotten."""


class BadServer(Exception):
    """An address that cannot be taken. Says what to give instead."""


class ServerState(Struct, frozen=True, kw_only=True):
    url: str
    is_up: bool
    is_announced: bool
    version: str | None = None
    problem: str = ""


class OpencodeFront:
    def __init__(self, engine: Engine, open_link: OpenLink, files: ProjectFiles) -> None:
        self.watched = Watched(engine)
        self._engine = engine
        self._open_link = open_link
        self._files = files
        self._watches: dict[str, Watch] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._passwords: dict[str, str | None] = {}
        self._configured: frozenset[str] = frozenset()
        self._tasks: TaskGroup | None = None

    # --- life ----------------------------------------------------------------------------------

    async def run(self, servers: Mapping[str, str | None]) -> None:
        """
        Until cancelled.

        Args:
            servers: Configured addresses, each with its password.
        """
        stop_hearing = self._engine.subscribe(
            lambda told: self._tell(notice) if (notice := notice_of(told)) else None
        )
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self.configure(servers)
                for url in await self._remembered():
                    self._add(url, None, is_announced=True)
                await anyio.sleep_forever()
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
            )
            for one in self._watches.values()
        ]

    # --- servers -------------------------------------------------------------------------------

    async def announce(self, url: str, *, password: str | None) -> bool:
        """
        A server says that it is there.

        Returns:
            Whether it was known already.

        Raises:
            BadServer: Not on this machine, or too many of them.
        """
        url = checked_url(url)
        known = self._watches.get(url)
        is_same = known is not None and (password is None or self._passwords.get(url) == password)
        if known is not None and is_same:
            if not known.is_up:
                known.look_now()
            return True
        if known is None and len(self._watches) >= MAX_SERVERS:
            raise BadServer(f"{MAX_SERVERS} opencode servers are known already")
        is_announced = url not in self._configured
        if known is not None:
            self._drop(url)
        self._add(url, password, is_announced=is_announced)
        if is_announced:
            await self._remember()
        log.info("server.announced", server=url)
        return False

    def _add(self, url: str, password: str | None, *, is_announced: bool) -> None:
        known = self._watches.get(url)
        if known is not None:
            if self._passwords.get(url) == password:
                known.is_announced = known.is_announced and is_announced
                return
            self._drop(url)
        link = self._open_link(url, password=password)
        watch = Watch(self.watched, link, self._files, is_announced=is_announced)
        self._watches[url] = watch
        self._passwords[url] = password
        if self._tasks is not None:
            self._tasks.start_soon(self._watch, watch)

    async def _watch(self, watch: Watch) -> None:
        with anyio.CancelScope() as scope:
            self._scopes[watch.url] = scope
            try:
                await watch.run()
            finally:
                with anyio.CancelScope(shield=True):
                    await watch.link.aclose()

    def _drop(self, url: str) -> None:
        self._watches.pop(url, None)
        self._passwords.pop(url, None)
        scope = self._scopes.pop(url, None)
        if scope is not None:
            scope.cancel()

    async def _remembered(self) -> list[str]:
        """Addresses only: passwords are not kept, and come again with the next announcement."""
        text = await self._engine.store.get_meta(ANNOUNCED_KEY)
        try:
            found = json.loads(text or "{}")
        except ValueError:
            return []
        now = self.watched.now
        urls = found.items() if isinstance(found, dict) else ()
        return [
            url
            for url, at in urls
            if isinstance(at, int | float) and now - at < FORGET_S and _is_usable(url)
        ][:MAX_SERVERS]

    async def _remember(self) -> None:
        now = self.watched.now
        urls = {one.url: now for one in self._watches.values() if one.is_announced}
        await self._engine.store.set_meta(ANNOUNCED_KEY, json.dumps(urls))

    # --- messages that are about to be sent ------------------------------------------------------

    async def redirect(
        self, *, server: str, session: str, directory: str, agent: str | None, model: str
    ) -> Redirect:
        if directory:
            await self._files.look(directory)
        where = Where(session=session, server=server.rstrip("/"), project=directory, agent=agent)
        return await self.watched.redirect(where, model=model)

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
            directory = "" if sessions is None else sessions.track(session.session).directory
            await show(watch.link, directory or session.project, notice)
        except Exception:  # who cannot be told does not stop who is rescued
            log.exception("notice.broke", session=notice.session)


def checked_url(url: str) -> str:
    """
    Raises:
        BadServer: Not the address of a server on this machine.
    """
    if not _is_usable(url):
        raise BadServer(
            f"{url[:100]!r} is no address of a server on this machine; give one like"
            " http://127.0.0.1:4096, or put that of another machine into [opencode] servers"
        )
    return url.rstrip("/")


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.scheme != "http" or port is None or parts.username or parts.query or parts.fragment:
        return False
    if parts.path not in ("", "/"):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
