"""A real engine in the test's own process: real store, real processes, real files."""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct, structs
from tests.support.clock import ManualClock

from fallbackd.backends import KINDS
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.config.profiles import of_kind
from fallbackd.core.decision import Journaled
from fallbackd.core.health import view
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import REASONS, Backend, Defaults, Entry, Policy
from fallbackd.core.records import Delegation
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings, Transports, World
from fallbackd.engine.live import Progress
from fallbackd.engine.requests import NewWork
from fallbackd.lib.processes import read_variables
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Clock, Transport
from fallbackd.stores import open_store
from fallbackd.transports.machine import Machine, fingerprint
from fallbackd.transports.process.leftovers import end_leftover
from fallbackd.transports.process.recording import read_ends, read_log
from fallbackd.transports.process.running import RunnerLimits
from fallbackd.transports.process.transport import ProcessTransport

HANG_S = 60
"""Only a hang takes so long."""

_numbers = itertools.count(1)


class Agent(Struct, frozen=True, kw_only=True):
    backend: Backend
    options: Options


def agent(
    name: str,
    *command: str,
    kind: str = "generic-cli",
    options: Mapping[str, Any] = {},
    **more: Any,
) -> Agent:
    """A backend whose program is `command`. `more` are fields of its policy."""
    own = Options(command=command, **options)
    backend = of_kind(Backend(id=BackendId(name), kind=kind), own)
    return Agent(backend=structs.replace(backend, **more), options=own)


def settings(
    *agents: Agent,
    chain: tuple[str, ...] | None = None,
    defaults: Mapping[str, Any] = {},
    reasons: Mapping[Any, Any] = {},
    **more: Any,
) -> Settings:
    """A policy of these backends; without a chain, all of them in order are the chain `*`."""
    names = tuple(one.backend.id for one in agents) if chain is None else chain
    policy = Policy(
        defaults=Defaults(**{"stop_grace_s": 0.2, "backoff_base_s": 0.05, **defaults}),
        reasons={**REASONS, **reasons},
        backends={one.backend.id: one.backend for one in agents},
        chains={"*": tuple(Entry(backend=BackendId(name)) for name in names)},
        **more,
    )
    return Settings(policy=policy, options={one.backend.id: one.options for one in agents})


@asynccontextmanager
async def engine_in(
    place: Path,
    config: Settings,
    *,
    store: str | Store = "memory:",
    clock: Clock | None = None,
    kinds: Mapping[str, BackendKind] = {},
    transport: Transport | None = None,
    environ: Mapping[str, str] = {},
    leaves: bool = False,
    hang_s: float = HANG_S * 3,
    **world: Any,
) -> AsyncIterator[Engine]:
    """
    An engine that serves until the block is left; then whatever still runs is stopped.

    Args:
        store: `memory:`, `sqlite` (a file in `place`, there again at the next call), or one that
            the test has opened.
        kinds: More kinds of backends, or others.
        transport: Instead of real processes.
        leaves: What still runs is left to a later engine, as by a daemon that was killed.
        hang_s: The block takes longer only where something hangs.
        world: Other parts of the world (`runs_root`, `luck`, `fingerprint`).
    """
    clock = ManualClock() if clock is None else clock
    home = place / "home"
    home.mkdir(exist_ok=True)
    environ = {**os.environ, "HOME": str(home), **environ}
    machine = Machine(environ)
    limits = RunnerLimits(stop_grace_s=0.2)
    processes = ProcessTransport(environ=environ, now=clock.now, limits=limits)
    opened = store
    if isinstance(opened, str):
        url = f"sqlite:{place}/records.sqlite" if opened == "sqlite" else opened
        opened = await open_store(url, now=clock.now())
    command = processes if transport is None else transport
    engine = Engine(
        opened,
        clock,
        config,
        World(
            **{
                "transports": Transports(command=command, http=command, served=command),
                "kinds": {**KINDS, **kinds},
                "find_program": machine.find_program,
                "read_text": machine.read_text,
                "changed_at": machine.changed_at,
                "environ": environ,
                "fingerprint": fingerprint,
                "read_log": _read_log,
                "read_chunks": read_ends,
                "home": machine.home,
                "runs_root": place / "runs",
                "luck": lambda: 0.0,
                "mint": lambda: f"{next(_numbers):06}",
                "attach": lambda **named: command.attach(**named),
                "end_leftover": _end_leftover,
                "boot_id": "this",
                "variables_of": read_variables,
                **world,
            }
        ),
    )
    try:
        with anyio.fail_after(hang_s):
            async with anyio.create_task_group() as tasks:
                is_ready = anyio.Event()
                tasks.start_soon(lambda: engine.run(ready=is_ready.set))
                await is_ready.wait()
                try:
                    yield engine
                finally:
                    tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await (processes.detach() if leaves else processes.aclose())
            if isinstance(store, str):
                await opened.aclose()


async def _end_leftover(directory: str, *, attempt: str) -> bool:
    found = await end_leftover(directory, grace_s=0.2, bound_s=HANG_S)
    return found is None or found.gone


def _read_log(directory: str, *, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
    found = read_log(directory, offset=offset, max_bytes=max_bytes)
    return found.data, found.next_offset, found.end_offset


async def ended(engine: Engine, delegation: Delegation | str) -> Delegation:
    """The delegation after its one answer."""
    name = delegation if isinstance(delegation, str) else delegation.delegation
    with anyio.fail_after(HANG_S):
        found, is_over = await engine.wait(DelegationId(name), until="finished", timeout_s=None)
    assert is_over
    assert found.is_ended
    return found


async def work(engine: Engine, prompt: str = "do it", **more: Any) -> Delegation:
    """Delegate, and wait for the answer."""
    return await ended(engine, await engine.delegate(NewWork(prompt=prompt, **more)))


def tried(delegation: Delegation) -> list[tuple[str, str | None]]:
    """(backend, why it failed) of each attempt."""
    return [
        (one.backend, None if one.failure is None else one.failure.reason.value)
        for one in delegation.attempts
    ]


def state_of(engine: Engine, backend: str) -> str:
    """What the records say about a backend now, in a word."""
    record = engine.snapshot().health.get(f"backend:{backend}")  # type: ignore[call-overload]
    return view(record, now=engine.clock.now()).state


class Ear:
    """Hears what subscribers hear."""

    def __init__(self, engine: Engine) -> None:
        self.notes: list[Journaled] = []
        self.progress: list[Progress] = []
        self._changed = anyio.Event()
        self.stop = engine.subscribe(self._hear)

    def _hear(self, told: Journaled | Progress) -> None:
        if isinstance(told, Progress):
            self.progress.append(told)
        else:
            self.notes.append(told)
        self._changed.set()
        self._changed = anyio.Event()

    def shown(self, kind: str) -> list[Progress]:
        return [one for one in self.progress if one.kind == kind]

    def text(self) -> str:
        return "".join(one.text for one in self.shown("attempt.text"))

    async def until(self, is_so: Callable[["Ear"], Any]) -> Any:
        with anyio.fail_after(HANG_S):
            while not (found := is_so(self)):
                await self._changed.wait()
        return found

    async def hears(self, kind: str, *, times: int = 1, **fields: Any) -> Journaled:
        """Wait until an event of a kind has come so often."""
        await self.until(lambda _: len(self.heard(kind, **fields)) >= times)
        return self.heard(kind, **fields)[-1]

    def heard(self, kind: str, **fields: Any) -> list[Journaled]:
        return [
            one
            for one in self.notes
            if one.note.kind == kind and fields.items() <= one.note.fields.items()
        ]


async def until(is_so: Callable[[], Any]) -> Any:
    """Wait for something that happens outside this process."""
    with anyio.fail_after(HANG_S):
        while not (found := is_so()):
            await anyio.sleep(0.01)
    return found
