"""
Looks that cost nothing: is the program there, has a login changed since it failed?

Done at the start, on the tick, at a reload, and for the candidates of a request before it is
decided, so that what was installed a moment ago is used at once.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from fallbackd.core.chain import candidates_for
from fallbackd.core.events import Event, ReadinessSeen
from fallbackd.core.failures import Reason
from fallbackd.core.health import view
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.scopes import backend_scope, credential_scope, find_backend
from fallbackd.engine.credentials import CredentialLooks
from fallbackd.engine.world import Settings, World
from fallbackd.ports.clock import Clock
from fallbackd.ports.store import Store


class Host(Protocol):
    store: Store
    clock: Clock
    settings: Settings
    world: World

    async def handle(self, event: Event) -> object: ...


class Readiness:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._credentials = CredentialLooks(host)

    async def look(self, backends: Iterable[BackendId] | Mapping[BackendId, Backend]) -> None:
        await self._credentials.recall()
        for name in list(backends):
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

    def _seen(self, name: BackendId) -> ReadinessSeen | None:
        """What is worth an event: something that the records do not say yet."""
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
        program = kind.program(host.settings.options_of(name))
        if program is not None:
            # A model of opencode servers is there without the program: what lacks is `opencode`.
            missing = not backend.implicit and host.world.find_program(program) is None
            if missing:
                known = (
                    outage is not None
                    and state.state == "broken"
                    and (outage.until_at is None or outage.until_at - now > 60)
                )
                if known:
                    return None
                return ReadinessSeen(
                    backend=name, reason=Reason.NOT_INSTALLED, detail=f"{program} is not on PATH"
                )
            if outage is not None and outage.source == "readiness":
                return ReadinessSeen(backend=name)
        if self._is_repaired(name, backend, now):
            return ReadinessSeen(backend=name, repaired=True)
        return None

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
            for path in (*kind.reads, *kind.logins):
                changed_at = host.world.changed_at(path)
                if changed_at is not None and changed_at > outage.last_failure_at:
                    return True
        return False
