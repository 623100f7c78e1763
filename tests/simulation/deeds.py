"""What happens beside the work: crashes, clocks, networks, people, configurations."""

import anyio
from msgspec import structs
from tests.simulation.callers import Callers
from tests.simulation.script import Deed
from tests.simulation.stage import Stage

from fallbackd.engine import feedback
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork

AFTER_S = 100.0
"""So long a backend is left out of the configuration."""


async def do(stage: Stage, callers: Callers, deed: Deed) -> None:
    stage.tell(f"{deed.what} {deed.value or ''}".strip())
    value = deed.value
    match deed.what:
        case "kill":
            (await stage.until_up()).kill()
        case "kill_at":
            (await stage.until_up()).commits_left = value
        case "kill_before":
            (await stage.until_up()).decisions_left = value
        case "kill_in_trial":
            await _kill_in_trial(stage, callers)
        case "reboot":
            (await stage.until_up()).kill()
            stage.programs.lose_power()
            stage.reboot()
        case "stop":
            await _stop(stage, callers, value)
        case "sleep":
            stage.sleep_machine(value)
            if value > 100:
                await callers.tell(lambda engine: engine.look_at_clock())
        case "clock":
            stage.set_clock(value)
        case "no_route":
            stage.has_route = False
            await anyio.sleep(value)
            stage.has_route = True
        case "reload":
            await _reload(stage, callers, value)
        case "caller":
            await callers.resolve(*value)
        case "mark":
            await callers.tell(
                lambda engine: feedback.mark(engine, value, reason=None, ttl_s=None, note=None)
            )
        case "clear":
            await callers.tell(lambda engine: feedback.clear(engine, value))
        case "pause":
            await callers.tell(lambda engine: feedback.pause(engine, value, note=None))
        case "session_end":
            await callers.tell(lambda engine: engine.end_session(value))
        case "session_compact":
            await callers.tell(lambda engine: engine.compact_session(value))
        case other:
            raise AssertionError(other)


async def _kill_in_trial(stage: Stage, callers: Callers) -> None:
    """Just when it has ordered a trial; then somebody else wants the same backend."""
    daemon = await stage.until_up()
    daemon.dies_in_trial = True
    with anyio.move_on_after(max(0.0, stage.script.horizon_s - stage.elapsed())):
        await daemon.died.wait()
    if stage.laws.has_begun_trial:
        backend = stage.laws.starts[-1].attempt.backend
        work = NewWork(prompt="beside", backend=backend, metadata={"task": "plain", "number": -3})
        name = await callers.delegate(work)
        if name is not None:
            await callers.answer_of(name)


async def _stop(stage: Stage, callers: Callers, limit_s: float) -> None:
    """As a service is stopped and started again; without a limit its work is left alone."""
    daemon = await stage.until_up()
    daemon.engine.drain()
    stops = limit_s > 0
    await callers.tell(lambda engine: engine.finish_work(limit_s=limit_s, stop_rest=stops))
    stage.died()
    if not daemon.is_dead:
        daemon.close()


async def _reload(stage: Stage, callers: Callers, how: str) -> None:
    before = stage.settings
    stage.settings = _changed(before, how)
    await callers.tell(lambda engine: engine.set_settings(stage.settings))
    if how == "without":
        await anyio.sleep(AFTER_S)
        stage.settings = before
        await callers.tell(lambda engine: engine.set_settings(stage.settings))


def _changed(settings: Settings, how: str) -> Settings:
    policy = settings.policy
    first = next(iter(policy.backends))
    backends = dict(policy.backends)
    chains = dict(policy.chains)
    match how:
        case "order":
            chains["*"] = tuple(reversed(chains["*"]))
        case "without":
            del backends[first]
        case "model":
            model = "m2" if backends[first].model != "m2" else "m1"
            backends[first] = structs.replace(backends[first], model=model)
    options = {name: one for name, one in settings.options.items() if name in backends}
    changed = structs.replace(policy, backends=backends, chains=chains)
    return structs.replace(settings, policy=changed, options=options)
