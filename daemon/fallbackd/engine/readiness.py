"""
Looks that cost nothing: is the program there, has a login changed since it failed?

Done at the start, on the tick, at a reload, and for the candidates of a request before it is
decided, so that what was installed a moment ago is used at once.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from fallbackd.backends.spec import BackendKind, Login, Options
from fallbackd.core.events import Event, ReadinessSeen
from fallbackd.core.health import Outage, view
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.routing.candidates import candidates_for
from fallbackd.core.scopes import backend_scope, credential_scope, find_backend
from fallbackd.engine.credentials import CredentialLooks, environ_of
from fallbackd.engine.environment import Settings, World
from fallbackd.lib.directories import expand, places
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Clock

VERSION = "version"
"""Detail of the outage of a program whose version is not supported."""


class ReadinessHost(Protocol):
    store: Store
    clock: Clock
    settings: Settings
    world: World

    async def handle(self, event: Event) -> object: ...


class Readiness:
    def __init__(self, host: ReadinessHost) -> None:
        self._host = host
        self._credentials = CredentialLooks(host)

    async def look(self, backends: Iterable[BackendId] | Mapping[BackendId, Backend]) -> None:
        await self._credentials.recall()
        for name in list(backends):
            await self._ask_version(name)
            event = self._seen(name)
            if event is not None:
                await self._host.handle(event)
            for seen in await self._credentials.seen(name):
                await self._host.handle(seen)
        await self._credentials.keep()

    async def look_at_candidates(
        self,
        *,
        backend: str | None,
        role: str | None,
        chain: tuple[Entry, ...] | str | None,
    ) -> None:
        """The candidates that a request is about to consider."""
        policy = self._host.settings.policy
        entries = policy.chains.get(chain) if isinstance(chain, str) else chain
        name = None if backend is None else BackendId(backend)
        found = candidates_for(policy, backend=name, role=role, chain=entries)
        await self.look(dict.fromkeys(entry.backend for entry in found))

    async def _ask_version(self, name: BackendId) -> None:
        """Ask the version of a program that refused the way it was started: `status` names it."""
        host = self._host
        record = host.store.peek().health.get(backend_scope(name))
        backend = find_backend(host.settings.policy, name)
        if record is None or record.outage is None or record.outage.detail != VERSION:
            return
        if backend is not None and backend.kind in host.world.kinds:
            program = host.world.kinds[backend.kind].program(host.settings.options_of(name))
            path = None if program is None else host.world.find_program(program)
            if path is not None:
                await host.world.probe.version(path)

    def _seen(self, name: BackendId) -> ReadinessSeen | None:
        """Event about what the records do not say yet; None: there is nothing new."""
        host = self._host
        backend = find_backend(host.settings.policy, name)
        if backend is None or not backend.enabled or backend.kind not in host.world.kinds:
            return None
        kind = host.world.kinds[backend.kind]
        health = host.store.peek().health
        record = health.get(backend_scope(name))
        now = host.clock.now()
        state = view(record, now=now)
        outage = None if record is None else record.outage
        obstacle = self._obstacle(backend, kind)
        if obstacle is not None:
            reason, detail = obstacle
            if state.state == "broken" and _says_it(outage, reason, now=now):
                return None
            return ReadinessSeen(backend=name, reason=reason, detail=detail)
        if outage is not None and outage.source == "readiness":
            return ReadinessSeen(backend=name)
        if self._is_repaired(name, backend, now):
            return ReadinessSeen(backend=name, repaired=True)
        return None

    def _obstacle(self, backend: Backend, kind: BackendKind) -> tuple[Reason, str] | None:
        """Reason why nothing can be started there, as far as that is certain."""
        if backend.lacks is not None:
            return Reason.NOT_CONFIGURED, backend.lacks
        options = self._host.settings.options_of(backend.id)
        program = kind.program(options)
        if program is None:
            return None
        if backend.implicit:  # of opencode servers: there without the program, which is `opencode`
            return None
        path = self._host.world.find_program(program)
        if path is None:
            return Reason.NOT_INSTALLED, f"{program} is not on PATH"
        version = self._host.world.probe.known_version(path)
        if version is not None and kind.unsupported(version, options):
            return Reason.NOT_CONFIGURED, VERSION
        if kind.login is not None and self._is_logged_out(kind.login, backend, options, path):
            account = f"{backend.account} " if backend.account else ""
            return Reason.NOT_CONFIGURED, f"not logged in: run `{account}{kind.login.command}`"
        return None

    def _is_logged_out(self, login: Login, backend: Backend, options: Options, path: str) -> bool:
        """Certainly: nothing of a login is to be found, and no caller can bring one."""
        if options.credentials or backend.allow_env or options.command:
            return False
        world = self._host.world
        environ = environ_of(self._host.settings, world, backend.id)

        def place(file: str) -> str:
            return expand(file, environ, home=world.home) or file

        return (
            not any(name.startswith(login.variables) and name != login.home for name in environ)
            and all(world.changed_at(place(file)) is None for file in login.files)
            and not any(
                _has_any(world.read_text(place(file)), words)
                for file, words in login.settings.items()
            )
            and world.is_program_of(login.package, path)
        )

    def _is_repaired(self, name: BackendId, backend: Backend, now: float) -> bool:
        """A login or settings file is newer than the failure that it may have caused."""
        host = self._host
        health = host.store.peek().health
        scopes = [backend_scope(name)]
        scopes += [credential_scope(backend, label) for label in backend.credentials]
        kind = host.world.kinds[backend.kind]
        for scope in scopes:
            record = health.get(scope)
            if record is None or record.outage is None or record.outage.source == "person":
                continue
            outage = record.outage
            if view(record, now=now).state != "broken":
                continue
            environ = environ_of(host.settings, host.world, name)
            for path in places((*kind.reads, *kind.logins), environ, home=host.world.home):
                changed_at = host.world.changed_at(path)
                if changed_at is not None and changed_at > outage.last_failure_at:
                    return True
        return False


def _has_any(text: str | None, words: Iterable[str]) -> bool:
    return text is not None and any(word in text for word in words)


def _says_it(outage: Outage | None, reason: Reason, *, now: float) -> bool:
    """Test whether the record needs no further look at why nothing can be started."""
    if outage is None or (outage.until_at is not None and outage.until_at - now <= 60):
        return False
    return outage.source != "readiness" or outage.reason is reason
