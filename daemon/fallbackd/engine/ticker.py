"""Every 30 s: persist and announce what time has done, look at what costs nothing, tidy up."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from fallbackd.core.events import Ticked
from fallbackd.core.history import KEPT_S
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.engine.api import Engine
from fallbackd.engine.runs import Kept
from fallbackd.engine.takeover import drop
from fallbackd.lib.failpoints import hit

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


log = structlog.get_logger("pruning")

ORPHAN_AGE_S = 3600.0
"""A directory is made before its record, and looked into by people after it."""
MAX_DROPPED = 1
"""Delegations for which a program is started at each look: it takes seconds."""
ENOUGH = 0.9
"""Share of the bound that is left once it was passed: not each look removes one directory."""


async def remove_old(engine: "Engine") -> tuple[SessionId, ...]:
    """Returns idle sessions that are due: they are for `Ticked` to drop."""
    store, defaults = engine.store, engine.settings.policy.defaults
    now = engine.clock.now()
    gone, idle = await store.prune(
        delegations_before_at=now - defaults.delegation_ttl_s,
        journal_before_at=now - defaults.journal_ttl_s,
        max_journal=defaults.max_journal,
        max_sessions=defaults.max_sessions,
        sessions_before_at=now - defaults.session_ttl_s,
        hours_before_at=now - KEPT_S,
    )
    hit("tick.pruned")
    held = _held(engine)
    removed = _Removal(engine)
    for delegation in (one for one in gone if one not in held):
        await removed.add(delegation)
    kept = await anyio.to_thread.run_sync(engine.runs.measure)
    orphans = await _orphans(engine, kept, now=now)
    orphans -= held
    known = [one for one in kept if one.delegation not in orphans | held]
    surplus = _surplus(
        known, total_bytes=sum(one.size_bytes for one in kept), max_bytes=defaults.max_runs_bytes
    )
    for delegation in (*orphans, *surplus):
        await removed.add(delegation)
    if gone or idle or orphans or surplus:
        log.info(
            "store.pruned",
            delegations=len(gone),
            sessions=len(idle),
            orphans=len(orphans),
            directories=len(surplus),
        )
    return tuple(idle)


class _Removal:
    """Removal of directories, and of what was made for them elsewhere."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._dropped = 0

    async def add(self, delegation: DelegationId) -> None:
        """One that is left here is found again at the next look, as one without a record."""
        engine, runs = self._engine, self._engine.runs
        made = await anyio.to_thread.run_sync(runs.made, delegation)
        taken_in = [one for one in made if not one.path]
        if taken_in and self._dropped >= MAX_DROPPED:
            return
        for number, one in enumerate(taken_in):
            self._dropped += 1
            directory = runs.path(delegation) / f"drop-{number}-{engine.world.mint()}"
            await drop(engine.settings, engine.world, one, directory=directory)
        await anyio.to_thread.run_sync(runs.remove, delegation)


def _held(engine: "Engine") -> set[DelegationId]:
    """Directories that unfinished work uses: its own, and those of what it continues."""
    found: set[DelegationId] = set()
    for name, one in engine.store.peek().active.items():
        found.update((name, *one.past.turns))
        if one.past.work is not None:
            found.add(one.past.work)
    return found


async def _orphans(engine: "Engine", kept: Sequence[Kept], *, now: float) -> set[DelegationId]:
    """Nothing is one while records cannot be trusted to be complete."""
    store = engine.store
    if store.problem is not None or store.set_aside:
        return set()
    found = set()
    for one in kept:
        is_old = 0 <= one.changed_at < now - ORPHAN_AGE_S
        if is_old and await store.delegation(one.delegation) is None:
            found.add(one.delegation)
    return found


def _surplus(kept: Sequence[Kept], *, total_bytes: int, max_bytes: int) -> list[DelegationId]:
    """The oldest ended ones, until the rest is within the bound."""
    if total_bytes <= max_bytes:
        return []
    dropped = []
    for one in sorted(kept, key=lambda one: one.changed_at):
        if total_bytes <= max_bytes * ENOUGH:
            break
        dropped.append(one.delegation)
        total_bytes -= one.size_bytes
    return dropped


TICK_S = 30.0
PRUNE_EVERY = 20
"""Ticks between two looks for what is too old: ten minutes."""


async def run_ticker(
    engine: Engine, *, every_s: float = TICK_S, on_tick: Callable[[], None] = lambda: None
) -> None:
    """Tick until cancelled. `on_tick` is called after each."""
    number = 0
    while True:
        await anyio.sleep(every_s)
        number += 1
        await tick(engine, prune=number % PRUNE_EVERY == 0)
        on_tick()


async def tick(engine: Engine, *, prune: bool = False) -> None:
    await engine.look_at_clock()  # the loop's own clock stood still while the machine slept
    store, defaults = engine.store, engine.settings.policy.defaults
    if store.problem is not None:
        await store.flush()
    await anyio.to_thread.run_sync(engine.runs.write_held)
    await engine.readiness.look(engine.settings.policy.backends)
    await store.checkpoint()
    idle: tuple[SessionId, ...] = ()
    if prune:
        idle = await remove_old(engine)
    fallen = tuple(
        session
        for session in await store.sessions(limit=defaults.max_sessions)
        if session.current != session.original
        and session.running is None
        and not session.recovered_announced
    )
    await engine.handle(Ticked(idle_sessions=idle, fallen_sessions=fallen))
    await engine.waking.fill_places()
    engine.last_tick_at = engine.clock.now()
    hit("tick.done")
