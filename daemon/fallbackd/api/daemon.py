"""The daemon itself: state, configuration, events, notifications, sharing."""

import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import UNSET

from fallbackd.api import shapes
from fallbackd.api.handler import ApiError, Handler, refuse_unknown
from fallbackd.api.health import health_entries
from fallbackd.api.host import Caller
from fallbackd.api.usage import MAX_DELEGATIONS
from fallbackd.backends.toolchains import TOOLCHAINS
from fallbackd.config.profiles import known_programs
from fallbackd.core.records import Delegation
from fallbackd.engine import feedback
from fallbackd.engine.credentials import kept_back
from fallbackd.engine.requests import Draining
from fallbackd.lib.directories import places
from fallbackd.ports.store import Selection
from fallbackd_client.wire.methods import share as wire
from fallbackd_client.wire.methods.config import (
    CONFIG_CHECK,
    CONFIG_GET,
    CONFIG_IMPORT,
    CONFIG_RELOAD,
    ConfigCheckParams,
    ConfigCheckResult,
    ConfigGetParams,
    ConfigGetResult,
    ConfigImportParams,
    ConfigImportResult,
    ConfigReloadParams,
    ConfigReloadResult,
    ImportLeft,
    ImportTaken,
)
from fallbackd_client.wire.methods.daemon import (
    DAEMON_DRAIN,
    DAEMON_PING,
    DAEMON_SHUTDOWN,
    DAEMON_UNDRAIN,
    STATUS,
    DaemonDrainParams,
    DaemonDrainResult,
    DaemonPingParams,
    DaemonPingResult,
    DaemonShutdownParams,
    DaemonShutdownResult,
    DaemonStatus,
    DaemonUndrainParams,
    DaemonUndrainResult,
    DelegationCounts,
    Program,
    Readiness,
    ResidentView,
    Rung,
    StatusParams,
    StatusResult,
    ToolchainView,
    Trouble,
)
from fallbackd_client.wire.methods.events import (
    EVENTS_SUBSCRIBE,
    EVENTS_UNSUBSCRIBE,
    EventKind,
    EventsSubscribeParams,
    EventsSubscribeResult,
    EventsUnsubscribeParams,
    EventsUnsubscribeResult,
)
from fallbackd_client.wire.methods.notify import (
    NOTIFY_TEST,
    Delivery,
    NotifyTestParams,
    NotifyTestResult,
)
from fallbackd_client.wire.methods.share import (
    SHARE_STATUS,
    SHARE_TEST,
    ShareStatusParams,
    ShareStatusResult,
    ShareTestParams,
    ShareTestResult,
    ShareTestStep,
)
from fallbackd_conversations.redact import redact

if TYPE_CHECKING:
    from fallbackd.core.policy import Policy
    from fallbackd.engine.api import Engine
    from fallbackd.ports.store import Store


def daemon_ping(engine: "Engine", params: DaemonPingParams, caller: Caller) -> DaemonPingResult:
    host = caller.host
    return DaemonPingResult(
        version=host.version,
        pid=host.pid,
        at=engine.clock.now(),
        state="draining" if host.is_draining else "running",
        attempt=caller.authority.attempt,
        permissions=None if caller.authority.who == "none" else caller.authority.permissions,
    )


async def daemon_drain(
    engine: "Engine", params: DaemonDrainParams, caller: Caller
) -> DaemonDrainResult:
    await caller.host.drain()
    return DaemonDrainResult(**_unfinished(engine))


async def daemon_undrain(
    engine: "Engine", params: DaemonUndrainParams, caller: Caller
) -> DaemonUndrainResult:
    if not await caller.host.undrain():
        raise Draining("the daemon is shutting down and takes no new work; ask the next one")
    return DaemonUndrainResult()


async def daemon_shutdown(
    engine: "Engine", params: DaemonShutdownParams, caller: Caller
) -> DaemonShutdownResult:
    left = _unfinished(engine)
    caller.host.shut_down(stop_work=params.stop_work)
    return DaemonShutdownResult(**left)


def _unfinished(engine: "Engine") -> dict[str, Any]:
    """Fields of an answer: what the end of the daemon waits for, and what outlives it."""
    active = engine.snapshot().active.values()
    awaited = [one for one in active if not one.outlives_daemon]
    shown = (engine.as_seen(one) for one in awaited[:MAX_WAITED_FOR])
    return {
        "running": len(awaited),
        "later": len(active) - len(awaited),
        "waits_for": tuple(map(shapes.delegation_line, shown)),
        "calls": engine.exchanges.running,
    }


MAX_WAITED_FOR = 20
"""That are named."""
MAX_SESSIONS = 20
"""The most recently used ones; `session.list` has all."""
MAX_ACTIVE = 100


async def status(engine: "Engine", params: StatusParams, caller: Caller) -> StatusResult:
    begun = caller.authority.has_begun
    one = None
    if params.session is not None:
        one = await engine.session(params.session, caller.authority)
    recent = await engine.sessions(limit=MAX_SESSIONS) if one is None else (one,)
    ended = await engine.store.finished_counts()
    snapshot = engine.snapshot()
    return StatusResult(
        daemon=_daemon(engine, caller),
        health=health_entries(snapshot, engine.settings.policy, now=engine.clock.now()),
        sessions=tuple(shapes.session(each) for each in recent if begun(each)),
        delegations=_counts(
            tuple(engine.as_seen(each) for each in snapshot.active.values()),
            ended,
            shown=lambda each: begun(each) and params.session in (None, each.session),
        ),
        questions=tuple(
            shapes.question(each)
            for each in await feedback.questions(engine, session=params.session)
            if caller.authority.is_person
        ),
        session=None if one is None else shapes.session(one),
        usage=None
        if one is None or not params.verbose
        else shapes.session_usage(
            one, await engine.delegations(Selection(session=one.session), limit=MAX_DELEGATIONS)
        ),
        readiness=await _readiness(engine) if params.verbose and one is None else None,
        programs=msgspec.convert(known_programs(), tuple[Program, ...])
        if params.programs
        else None,
        toolchains=_toolchains(engine) if params.programs else None,
        share=sharing(engine),
        residents=_residents(engine) if caller.authority.is_person else (),
    )


def _residents(engine: "Engine") -> tuple[ResidentView, ...]:
    return tuple(
        ResidentView(
            program=one.program,
            cwd=one.cwd,
            state=one.state,
            since_at=one.since_at,
            memory_bytes=one.memory_bytes,
        )
        for one in engine.world.residents()
    )


async def _readiness(engine: "Engine") -> dict[str, Readiness]:
    return {
        name: Readiness(
            at=found.at,
            rungs=tuple(
                Rung(name=each.name, ok=each.ok, detail=redact(each.detail)) for each in found.rungs
            ),
        )
        for name, found in (await engine.ladder.climb()).items()
    }


def _daemon(engine: "Engine", caller: Caller) -> DaemonStatus:
    host = caller.host
    config = host.config()
    return DaemonStatus(
        version=host.version,
        pid=host.pid,
        started_at=engine.started_at,
        uptime_s=max(0.0, engine.clock.now() - engine.started_at),
        socket=host.socket,
        state="draining" if host.is_draining else "running",
        config_path=config.path,
        config_errors=shapes.problems(config.errors),
        config_warnings=shapes.problems(config.warnings),
        state_dir=host.state_dir,
        store=_store(engine.store),
        connections=host.connections,
        last_tick_at=engine.last_tick_at,
        troubles=tuple(
            Trouble(kind=one.kind, message=one.message, fix=one.fix, stops_work=one.stops_work)
            for one in host.troubles()
        ),
        path=host.path,
        confinement=_confinement(engine.settings.policy),
        kept_back=kept_back(engine.settings, engine.world),
    )


def _toolchains(engine: "Engine") -> tuple[ToolchainView, ...]:
    world = engine.world
    return tuple(
        ToolchainView(
            name=each.name,
            signs=each.signs,
            writes=places(each.writes, world.inheritable, home=world.home),
            refused=each.refused,
        )
        for each in TOOLCHAINS
    )


def _confinement(policy: "Policy") -> str:
    if not policy.defaults.confine:
        return "off: agents are not held to their permissions, by confine = false in [defaults]"
    match policy.kernel_confines:
        case "yes":
            return "on"
        case "partly":
            return "partly: before Linux 6.2, an agent can truncate files outside its directory"
        case _:
            return "no: this kernel has no Landlock (Linux 6.2), so agents may write anywhere"


def _store(store: "Store") -> str:
    """Its kind; behind it what is wrong with it, in sentences."""
    trouble = "" if store.problem is None else f": {store.problem}"
    text = f"{store.kind}{trouble}"
    is_file = False
    for one in store.set_aside:
        is_file = is_file or ".corrupt-" in os.path.basename(one)
        what = "file" if ".corrupt-" in os.path.basename(one) else "record"
        text += f"; damaged {what} set aside as {one}"
    if is_file:
        text += (
            ". While such a file lies there, answers without a record are kept: remove it when"
            " nothing of it is needed any more"
        )
    return text


def _counts(
    active: tuple[Delegation, ...], ended: dict[str, int], *, shown: Callable[[Delegation], bool]
) -> DelegationCounts:
    states = Counter(one.state for one in active)
    listed = [one for one in active if shown(one)][:MAX_ACTIVE]
    return DelegationCounts(
        running=states["running"],
        waiting=states["waiting"],
        queued=states["queued"],
        awaiting_answer=states["awaiting_answer"],
        finished_total=sum(ended.values()),
        by_state=ended,
        active=tuple(shapes.delegation_line(one) for one in listed),
    )


def config_get(engine: "Engine", params: ConfigGetParams, caller: Caller) -> ConfigGetResult:
    now = caller.host.config()
    return ConfigGetResult(
        config=now.config,
        path=now.path,
        loaded_at=now.loaded_at,
        errors=shapes.problems(now.errors),
        warnings=shapes.problems(now.warnings),
    )


async def config_check(
    engine: "Engine", params: ConfigCheckParams, caller: Caller
) -> ConfigCheckResult:
    found = await caller.host.check_config(
        path=params.path, text=params.text, directory=params.directory
    )
    return ConfigCheckResult(
        ok=not found.errors,
        path=found.path,
        errors=shapes.problems(found.errors),
        warnings=shapes.problems(found.warnings),
    )


async def config_import(
    engine: "Engine", params: ConfigImportParams, caller: Caller
) -> ConfigImportResult:
    found = await caller.host.import_config(path=params.path, env=params.env, write=params.write)
    return ConfigImportResult(
        source=found.source,
        toml=found.toml,
        taken=tuple(ImportTaken(what=what, to=to) for what, to in found.taken),
        left=tuple(ImportLeft(what=what, why=why) for what, why in found.left),
        written=found.written,
    )


async def config_reload(
    engine: "Engine", params: ConfigReloadParams, caller: Caller
) -> ConfigReloadResult:
    is_changed = await caller.host.reload_config()
    now = caller.host.config()
    if now.errors:
        first = now.errors[0]
        place = f" at `{first.path}`" if first.path else ""
        raise ApiError(
            "config_invalid",
            f"{now.path} was not taken{place}: {first.message}. The last good configuration stays"
            " in effect. Correct the file: it is read again by itself.",
            data={"errors": [{"path": one.path, "message": one.message} for one in now.errors]},
        )
    return ConfigReloadResult(
        changed=is_changed, path=now.path, warnings=shapes.problems(now.warnings)
    )


def events_subscribe(
    engine: "Engine", params: EventsSubscribeParams, caller: Caller
) -> EventsSubscribeResult:
    refuse_unknown("event kind", params.kinds or (), get_args(EventKind))
    if params.text_since is not None and params.delegation is None:
        raise ApiError("invalid_params", "`text_since` needs `delegation`: name whose text it is")
    if params.delegation is None and not caller.authority.is_person:
        raise ApiError(
            "not_permitted",
            "`delegation`: name one that you have begun; you are asking from"
            f" {caller.authority.place}",
        )
    # Not `async`: so the answer is written before the first event can be.
    name, seq, warning = caller.subscriptions.open(caller, params)
    return EventsSubscribeResult(
        subscription=name, seq=seq, warning=UNSET if warning is None else warning
    )


def events_unsubscribe(
    engine: "Engine", params: EventsUnsubscribeParams, caller: Caller
) -> EventsUnsubscribeResult:
    return EventsUnsubscribeResult(ended=caller.subscriptions.end(caller, params.subscription))


async def notify_test(
    engine: "Engine", params: NotifyTestParams, caller: Caller
) -> NotifyTestResult:
    found = await caller.host.notify_test()
    if not found:
        raise ApiError(
            "invalid_params",
            "no notifications are configured; set command or url in [notify] of the configuration,"
            ' for example: command = ["notify-send", "{title}", "{text}"]',
        )
    return NotifyTestResult(
        deliveries=tuple(
            Delivery(way=way, ok=problem is None, detail=problem or "delivered")
            for way, problem in found.items()
        )
    )


PRESENT_S = 90.0
"""A machine says every 30 s that it is there."""


def sharing(engine: "Engine") -> wire.Sharing | None:
    if engine.peers is None:
        return None
    one = engine.peers.shown()
    return wire.Sharing(
        state=one.state,
        group=one.group,
        machine=one.machine,
        since_at=one.since_at,
        problem=one.problem,
        warning=one.warning,
        machines=sum(each.seen_ago_s <= PRESENT_S for each in one.machines),
        offset_ms=None if one.offset_s is None else round(one.offset_s * 1000, 1),
        outbox=one.outbox,
        ignored=one.ignored,
        advice=one.advice,
        arbiter_away=one.is_arbiter_away,
        alone_at=one.alone_at,
        alone_scopes=one.alone_scopes,
    )


async def share_status(
    engine: "Engine", params: ShareStatusParams, caller: Caller
) -> ShareStatusResult:
    if engine.peers is None:
        return ShareStatusResult()
    one = engine.peers.shown()
    return ShareStatusResult(
        share=sharing(engine),
        machines=tuple(
            wire.SharingMachine(
                name=each.name, version=each.version, pid=each.pid, seen_ago_s=each.seen_ago_s
            )
            for each in one.machines
        ),
        scopes=one.scopes,
    )


async def share_test(engine: "Engine", params: ShareTestParams, caller: Caller) -> ShareTestResult:
    steps = () if engine.peers is None else await engine.peers.test()
    return ShareTestResult(
        steps=tuple(
            ShareTestStep(step=one.step, ok=one.ok, detail=one.detail, took_s=one.took_s)
            for one in steps
        )
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(DAEMON_PING, daemon_ping),
    Handler(DAEMON_DRAIN, daemon_drain),
    Handler(DAEMON_SHUTDOWN, daemon_shutdown),
    Handler(DAEMON_UNDRAIN, daemon_undrain),
    Handler(STATUS, status),
    Handler(CONFIG_GET, config_get),
    Handler(CONFIG_CHECK, config_check),
    Handler(CONFIG_IMPORT, config_import),
    Handler(CONFIG_RELOAD, config_reload),
    Handler(EVENTS_SUBSCRIBE, events_subscribe),
    Handler(EVENTS_UNSUBSCRIBE, events_unsubscribe),
    Handler(NOTIFY_TEST, notify_test, waits=True),
    Handler(SHARE_STATUS, share_status),
    Handler(SHARE_TEST, share_test),
)
