"""Every 30 s: persist and announce what time has done, look at what costs nothing, tidy up."""

from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from fallbackd.core.events import Ticked
from fallbackd.core.ids import SessionId
from fallbackd.engine import pruning
from fallbackd.engine.api import Engine
from fallbackd.lib.failpoints import hit

log = structlog.get_logger("ticker")

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
        idle = await pruning.prune(engine)
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
