"""Machines of one group inside a test: real engines, a real server, a provider that counts."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.support.clock import ManualClock
from tests.support.running_engine import agent, engine_in, settings

from fallbackd.core.callers.lease import Resolution
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.health import View, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason, ReasonPolicy
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.peers import Grouping, Shared
from fallbackd.engine.sharing import Sharing
from fallbackd.ports.store import Share
from fallbackd.stores.share_redis.store import RedisShare, ShareAddress

HANG_S = 90.0
PLAN = ScopeId("quota:plan")
HOST = "api.example.com"
WALL = Evidence(text="You have hit your usage limit.", stream="stderr", exit_code=1)


class Machine:
    """One machine: its engine, its sharing, and the clock that it believes."""

    def __init__(self, name: str, engine: Engine, sharing: Sharing, clock: ManualClock) -> None:
        self.name = name
        self.engine = engine
        self.sharing = sharing
        self.clock = clock

    def view(self, scope: ScopeId = PLAN) -> View:
        return view(self.engine.snapshot().health.get(scope), now=self.clock.now())

    @property
    def shown(self) -> Shared:
        return self.sharing.shown()

    async def until(self, wanted: Callable[["Machine"], bool]) -> None:
        with anyio.fail_after(HANG_S):
            while not wanted(self):
                await anyio.sleep(0.005)

    async def resolve(self) -> Resolution:
        return await callers.resolve(
            self.engine, ResolveRequested(backend=BackendId("first"), owner="test"), lease=True
        )

    async def report(self, found: Resolution, provider: "Provider") -> None:
        """Make the call that was resolved, and say how it ended."""
        assert found.backend is not None
        answers = await provider.call(self.name, found.backend)
        await callers.report(
            self.engine,
            Reported(
                outcome="success" if answers else "failure",
                backend=found.backend,
                lease=found.lease_id,
                started_at=self.clock.now() - 0.001,
            ),
            evidence=None if answers else WALL,
        )


class Provider:
    """Counts who asks it; `works` is what it does about the plan."""

    def __init__(self, *, works: bool = False, takes_s: float = 0.0) -> None:
        self.works = works
        self.takes_s = takes_s
        self.hits: list[str] = []

    async def call(self, machine: str, backend: str) -> bool:
        if backend != "first":
            return True
        self.hits.append(machine)
        await anyio.sleep(self.takes_s)
        return self.works


@asynccontextmanager
async def group(place: Path, count: int, **named: Any) -> AsyncIterator[Sequence[Machine]]:
    """See `_group`. An error of the test is raised as it is, and not in the groups of all tasks."""
    try:
        async with _group(place, count, **named) as machines:
            yield machines
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


@asynccontextmanager
async def _group(
    place: Path,
    count: int,
    *,
    url: str | Callable[[int], str],
    window_s: float = 600.0,
    cooldown_s: float = 0.0,
    skews_s: Mapping[int, float] | None = None,
    lease_s: float = 60.0,
    limit_s: float = HANG_S,
    wrapped: Callable[[Share], Share] = lambda share: share,
    connected: bool = True,
    hang_s: float = HANG_S * 2,
    ca_file: str | None = None,
) -> AsyncIterator[Sequence[Machine]]:
    """
    Args:
        skews_s: By how much the clocks of some machines are wrong.
        limit_s: How long a trial waits for its lease. All machines share one processor here, so
            that what a real one does within 250 ms may take longer.
        connected: Wait until all are.
    """
    policy = ReasonPolicy(window_s=window_s, cooldown_s=cooldown_s, max_window_s=window_s, growth=1)
    config = settings(
        agent("first", "/bin/false", quota="plan", provider=HOST),
        agent("second", "/bin/true"),
        reasons={Reason.RATE_LIMIT: policy, Reason.USAGE_LIMIT: policy},
    )
    async with AsyncExitStack() as stack:
        machines = []
        for number in range(count):
            clock = ManualClock()
            clock.advance((skews_s or {}).get(number, 0.0))
            folder = place / f"m{number}"
            folder.mkdir(parents=True, exist_ok=True)
            engine = await stack.enter_async_context(
                engine_in(folder, config, clock=clock, hang_s=hang_s)
            )
            where = url if isinstance(url, str) else url(number)
            share = wrapped(RedisShare(ShareAddress(url=where, ca_file=ca_file), group="test"))
            sharing = Sharing(
                engine,
                share,
                Grouping(
                    group="test",
                    machine=f"m{number}",
                    instance=f"i{number}",
                    lease_s=lease_s,
                    limit_s=limit_s,
                ),
                identities=_nobody,
            )
            engine.peers = sharing
            machines.append(Machine(f"m{number}", engine, sharing, clock))
        async with anyio.create_task_group() as tasks:
            for one in machines:
                tasks.start_soon(one.sharing.run)
            if connected:
                for one in machines:
                    await one.until(lambda each: each.shown.state == "connected")
            yield machines
            tasks.cancel_scope.cancel()


async def _nobody() -> Mapping[ScopeId, ScopeId]:
    return {}
