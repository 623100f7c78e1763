"""
Look at a backend without spending anything, rung by rung.

    program   it is on PATH, and says its version
    login     a login or a key is there, and has not expired
    models    the provider answers a request for its models, which is not billed
    quota     what is left of a plan: not asked for here (`engine.quota` does)
    request   when its provider last answered real work: the only proof; the next one after an
              outage is a leased trial

A rung that would cost something is not climbed. Where nothing can be known, `ok` is null. What is
found is kept for 30 s and marks no backend by itself: the looks before each request do that.
"""

from collections.abc import Mapping
from typing import Protocol

import anyio
from msgspec import Struct

from fallbackd.backends.http_calls import key_variables, read_models
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.health import view
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend
from fallbackd.core.protocol import (
    FOREIGN_LISTENER,
    CredentialRef,
    Evidence,
    HttpResponse,
    NoAnswer,
    Work,
)
from fallbackd.core.scopes import backend_scope
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.judging import judge
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Clock

FRESH_S = 30.0
AT_ONCE = 4


class Rung(Struct, frozen=True, kw_only=True):
    name: str
    """program, login, models, quota, request."""
    ok: bool | None = None
    """Null: only a request that costs something would show it."""
    detail: str = ""


class Climbed(Struct, frozen=True, kw_only=True):
    at: float
    rungs: tuple[Rung, ...]


class ProbeHost(Protocol):
    store: Store
    clock: Clock
    settings: Settings
    world: World


class Ladder:
    def __init__(self, host: ProbeHost) -> None:
        self._host = host
        self._found: dict[BackendId, Climbed] = {}
        self._settings: Settings | None = None
        self._lock = anyio.Lock()
        """Callers at the same time share one look and its answer."""

    async def climb(self) -> Mapping[BackendId, Climbed]:
        """Every configured backend; at most as old as `FRESH_S`."""
        host = self._host
        async with self._lock:
            if self._settings is not host.settings:
                self._settings = host.settings
                self._found.clear()
            now = host.clock.now()
            backends = host.settings.policy.backends
            due = [
                name
                for name in backends
                if (known := self._found.get(name)) is None or not 0 <= now - known.at < FRESH_S
            ]
            slots = anyio.CapacityLimiter(AT_ONCE)

            async def look(name: BackendId) -> None:
                async with slots:
                    rungs = await self._rungs(backends[name])
                    self._found[name] = Climbed(at=now, rungs=rungs)

            async with anyio.create_task_group() as tasks:
                for name in due:
                    tasks.start_soon(look, name)
            return {name: self._found[name] for name in backends}

    async def _rungs(self, backend: Backend) -> tuple[Rung, ...]:
        host = self._host
        kind = host.world.kinds.get(backend.kind)
        if kind is None:
            return (Rung(name="program", detail=f"{backend.kind} is nothing that can be started"),)
        options = host.settings.options_of(backend.id)
        found = []
        program = kind.program(options)
        if program is not None:
            found.append(await self._program(program, kind, options))
            if found[0].ok is False:
                return tuple(found)
        login, credential = await self._login(kind, options)
        found.append(login)
        if kind.models is not None and login.ok is not False:
            found.append(await self._models(backend, kind, options, credential))
        found.append(Rung(name="quota", detail="not read"))
        found.append(self._request(backend))
        return tuple(found)

    async def _program(self, program: str, kind: BackendKind, options: Options) -> Rung:
        path = self._host.world.find_program(program)
        if path is None:
            return Rung(name="program", ok=False, detail=f"{program} is not on PATH")
        version = await self._host.world.probe.version(path)
        if why := kind.unsupported(version or "", options):
            return Rung(name="program", ok=False, detail=f"{path}: {why}")
        return Rung(name="program", ok=True, detail=f"{path} {version or ''}".strip())

    async def _login(
        self, kind: BackendKind, options: Options
    ) -> tuple[Rung, CredentialRef | None]:
        world = self._host.world
        problems = []
        for ref in options.credentials:
            if ref.source == "command":  # to run it is no look
                return Rung(name="login", detail=f"{ref.label} comes from a command"), ref
            seen = await world.secrets.look(ref)
            if seen.problem is None:
                return Rung(name="login", ok=True, detail=f"credential {ref.label}"), ref
            problems.append(f"{ref.label}: {seen.problem}")
        if problems:
            return Rung(name="login", ok=False, detail="; ".join(problems)), None
        return self._own_login(kind, options), None

    def _own_login(self, kind: BackendKind, options: Options) -> Rung:
        """The login of a backend without credentials of its own: its program's, or a variable."""
        world = self._host.world
        for path in kind.logins:
            if world.changed_at(path) is not None:
                return Rung(name="login", ok=True, detail=path)
        variables, is_needed = kind.reads_env, False
        if kind.endpoint is not None:
            variables, is_needed = key_variables(kind.endpoint, options)
        for variable in variables:
            if variable.endswith(("_KEY", "_TOKEN")) and world.environ.get(variable):
                return Rung(name="login", ok=True, detail=f"${variable}")
        if is_needed:  # by the daemon; a caller of `resolve` may have a key of its own
            detail = f"{' or '.join(variables)} is not set for the daemon"
            return Rung(name="login", ok=False, detail=detail)
        missing = f"no {kind.logins[0]} and no key" if kind.logins else "none is configured"
        return Rung(name="login", detail=missing)

    async def _models(
        self,
        backend: Backend,
        kind: BackendKind,
        options: Options,
        credential: CredentialRef | None,
    ) -> Rung:
        world = self._host.world
        assert kind.models is not None
        if backend.lacks is not None:
            return Rung(name="models", ok=False, detail=backend.lacks)
        if not backend.loopback and not world.has_route():
            return Rung(name="models", detail="this machine has no network")
        try:
            request = kind.models(_nothing_to_do(kind, world, credential), options)
        except ValueError as error:
            return Rung(name="models", ok=False, detail=str(error))
        fetched = await world.probe.fetch(request)
        match fetched.exit:
            case HttpResponse(status=200):
                return _listed(fetched.body, options)
            case HttpResponse(status=404 | 405):
                return Rung(name="models", detail="has no list of models")
            case HttpResponse(status=status):
                reason = self._reason_of(fetched.exit, fetched.body, backend, kind)
                return Rung(name="models", ok=False, detail=f"HTTP {status}: {reason}")
            case NoAnswer(exception=name, text=text) if name == FOREIGN_LISTENER:
                return Rung(name="models", ok=False, detail=text)
            case NoAnswer(exception=name):
                return Rung(name="models", ok=False, detail=f"no answer: {name}")
            case _:
                return Rung(name="models", ok=False, detail="cannot be asked")

    def _reason_of(
        self, answer: HttpResponse, body: bytes, backend: Backend, kind: BackendKind
    ) -> str:
        evidence = Evidence(
            text=body.decode("utf-8", "replace")[:4000],
            stream="http",
            http_status=answer.status,
            headers=answer.headers,
        )
        now = self._host.clock.now()
        failure = judge(evidence, self._host.settings, kind, backend.id, now=now)
        return "unknown" if failure is None else failure.reason.value

    def _request(self, backend: Backend) -> Rung:
        host = self._host
        seen = host.store.peek()
        now = host.clock.now()
        meter = seen.meters.get(backend.id)
        state = view(seen.health.get(backend_scope(backend.id)), now=now)
        answered_at = None if meter is None else meter.answered_at
        words = []
        if answered_at is not None:
            words.append(f"answered {max(0, round(now - answered_at))} s ago")
        if state.unproven:
            words.append("unproven: the next request is a trial")
        elif state.state != "healthy":
            words.append(state.state)
        ok = None if answered_at is None else state.state == "healthy" and not state.unproven
        return Rung(name="request", ok=ok, detail="; ".join(words) or "none yet")


def _listed(body: bytes, options: Options) -> Rung:
    """Test whether the configured model is among those that are served."""
    served = read_models(body)
    if served is None:
        return Rung(name="models", detail="answers with something else than a list")
    if options.model is None or options.model in served:
        return Rung(name="models", ok=True, detail=f"{len(served)} models")
    return Rung(name="models", detail=f"{options.model} is not among its {len(served)} models")


def _nothing_to_do(kind: BackendKind, world: World, credential: CredentialRef | None) -> Work:
    """Work without a prompt, for a request that only asks about the service."""
    names = {name: world.environ[name] for name in kind.reads_env if name in world.environ}
    return Work(
        prompt="", prompt_path="", cwd="/", scratch="/", inherited=names, credential=credential
    )
