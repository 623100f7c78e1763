"""When the trouble is over: nothing leaks, outages were bounded, everybody is used again."""

from itertools import pairwise

import anyio
from tests.simulation.callers import Callers
from tests.simulation.stage import Stage

from fallbackd.core.callers.lease import LEASE_S
from fallbackd.core.health import Health, is_leased
from fallbackd.core.ids import ScopeId, delegation_of
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import scopes_of
from fallbackd.engine import feedback
from fallbackd.engine.requests import NewWork

QUIET_TICK_S = 86_400.0
GAP_S = {
    "throttled": 60.0,
    "plan_limit": 60.0,
    "overloaded": 30.0,
    "server_error": 30.0,
    "login_gone": 300.0,
}
"""At least so far apart are two attempts on one candidate that is known to be out: the shorter of
its first window and of the time between two last resorts (nobody resorts to what needs a repair).
"""


async def hold_quiet(stage: Stage, callers: Callers) -> None:
    """All callers have gone: what is left has to be nothing."""
    laws = stage.laws
    stage.is_over = True
    stage.settings = stage.script.settings
    stage.tick_s = QUIET_TICK_S
    daemon = await stage.until_up()
    daemon.commits_left = daemon.decisions_left = None
    daemon.dies_in_trial = False
    stage.tell("the trouble is over")
    await _finish(stage)
    if (await stage.until_up()).engine.settings is not stage.settings:
        await callers.tell(lambda engine: engine.set_settings(stage.settings))
    for deed in stage.script.deeds:
        if deed.what == "pause":
            await callers.tell(lambda engine, deed=deed: feedback.resume(engine, deed.value))
    await anyio.sleep(LEASE_S + 1)
    daemon = await stage.until_up()
    engine, store = daemon.engine, daemon.store
    now = engine.clock.now()
    for name in callers.acknowledged:
        laws.require(name in callers.answers, f"{name} was acknowledged and never answered")
    for name, one in laws.delegations.items():
        laws.require(one.is_ended, f"{name} has no end")
        kept = await store.delegation(name)
        laws.require(kept == one, f"{name} is kept as something else")
    for program in stage.programs.alive():
        laws.require(False, f"{program.attempt} was left running")
    for session in await store.sessions():
        laws.require(session.running is None, f"{session.session} is held by {session.running}")
    for scope, record in store.peek().health.items():
        laws.require(not is_leased(record, now=now), f"the trial of {scope} was never given back")
    seen = [one.seq for one in await store.journal(after_seq=0, limit=100_000)]
    laws.require(seen == list(range(1, store.last_seq + 1)), "the journal has holes")
    laws.require(not engine._held and not engine._running._live, "the engine holds what is over")
    laws.require(not engine._wakes._current, f"wakes are left: {engine._wakes._current}")


async def _finish(stage: Stage) -> None:
    """Until the last delegation is over, whoever asked for it."""
    for _ in range(200):
        if not stage.laws.active() and not stage.programs.alive():
            return
        await anyio.sleep(60.0)


def hold_bounds(stage: Stage) -> None:
    """While everybody is out, all callers together make few attempts."""
    laws, script = stage.laws, stage.script
    if script.outage is None:
        return
    begin_s, end_s = script.outage
    for member in script.members:
        gap_s = GAP_S[member.spells[0].condition]
        for label in member.backend.credentials or (None,):
            scopes = scopes_of(member.backend, member.backend.model, label)
            marks = [at_s for scope in scopes for at_s in laws.marks.get(scope, ())]
            known_s = min((at_s for at_s in marks if begin_s < at_s < end_s), default=end_s)
            starts = [
                one
                for one in laws.starts
                if begin_s < one.at_s < end_s
                and one.attempt.backend == member.backend.id
                and one.attempt.credential == label
                and laws.has_shown_trouble(one.attempt.attempt)
            ]
            early = [delegation_of(one.attempt.attempt) for one in starts if one.at_s <= known_s]
            who = f"{member.backend.id} {label or ''}".strip()
            for name in set(early):
                laws.require(early.count(name) <= 2, f"{name} tried {who} again and again")
            late = [one for one in starts if one.at_s > known_s]
            bound = (end_s - known_s) / gap_s + 1 + stage.deaths_between(begin_s, end_s)
            # A last resort that fails leaves the window as it was, which may end right after it.
            for is_early in (False, True):
                kind = [one for one in late if one.is_early is is_early]
                for one, following in pairwise(kind):
                    is_apart = following.at_s - one.at_s >= gap_s - 1
                    # A mark whose window is over does not outlive its daemon.
                    marked_s = max(at_s for at_s in marks if at_s <= following.at_s)
                    is_forgotten = stage.deaths_between(marked_s, following.at_s) > 0
                    what = f"{following.attempt.attempt} follows {one.attempt.attempt}"
                    laws.require(is_apart or is_forgotten, f"{who} is out: {what}")
                laws.require(len(kind) <= bound, f"{len(kind)} attempts on {who}, which is out")


async def hold_recovery(stage: Stage, callers: Callers) -> None:
    """Each backend is used again when its stated time is over, and one attempt proves it."""
    laws, script = stage.laws, stage.script
    if script.flavour == "chaos" and script.seed % 3:
        return  # enough of them look
    for _ in script.members:
        daemon = await stage.until_up()
        health = daemon.store.peek().health
        now = daemon.engine.clock.now()
        backends = stage.settings.policy.backends.values()
        due = sorted((_returns_at(one, health, now), one.id) for one in backends)
        done = {str(answer.requested) for answer in callers.recovered}
        at, name = next(one for one in due if one[1] not in done)
        await anyio.sleep(max(0.0, at - now) + 0.5)
        found = await callers.delegate(NewWork(prompt="again", backend=name, metadata=RECOVERED))
        assert found is not None
        ended = await callers.answer_of(found)
        callers.recovered.append(ended)
        is_back = ended.served_by == name and len(ended.attempts) == 1
        laws.require(is_back, f"{name} is well and not used: {ended.served_by} {ended.verdicts}")
    daemon = await stage.until_up()
    for record in daemon.store.peek().health.values():
        is_proven = record.outage is None or record.outage.reason is Reason.MANUAL
        laws.require(is_proven or _is_unused(stage, record), f"{record} stands after the proof")


RECOVERED = {"task": "plain", "number": -2}


def _is_unused(stage: Stage, record: Health) -> bool:
    """Perhaps nobody touches it any more: another model, or the other one of two credentials."""
    used = {
        scope
        for one in stage.settings.policy.backends.values()
        if len(one.credentials) < 2
        for scope in scopes_of(one, one.model, next(iter(one.credentials), None))
    }
    return record.scope not in used


def _returns_at(backend: Backend, health: dict[ScopeId, Health], now: float) -> float:
    """When a backend is to be used freely again, at the latest."""
    found = []
    for label in backend.credentials or (None,):
        ends = [now]
        for scope in scopes_of(backend, backend.model, label):
            record = health.get(scope)
            if record is None or record.outage is None:
                continue
            until_at = record.outage.until_at
            ends.append(float("inf") if until_at is None else until_at + record.outage.cooldown_s)
        found.append(max(ends))
    return min(found)
