"""Health of backends and scopes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core import views
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, Policy
from fallbackd.core.records import Snapshot
from fallbackd.core.scopes import find_backend, is_scope_of
from fallbackd.engine import feedback
from fallbackd.engine.requests import Draining, Unknown
from fallbackd_client.wire.methods.health import HEALTH, HealthParams, HealthResult
from fallbackd_client.wire.shapes import HealthEntry

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

USABLE = frozenset({"healthy", "cooldown"})
"""States of backends that work may be given to."""
Entries = dict[str, HealthEntry]


def health_entries(
    snapshot: Snapshot, policy: Policy, *, now: float, only: Literal["unhealthy"] | None = None
) -> Entries:
    return msgspec.convert(views.health_entries(snapshot, policy, now=now, only=only), Entries)


def usable_names(snapshot: Snapshot, policy: Policy, *, now: float) -> list[str]:
    """Backends that can do work now, in the order of the chain for any work."""
    entries = health_entries(snapshot, policy, now=now)
    order = [str(entry.backend) for entry in policy.chains.get("*", ())]
    return [
        name
        for name in dict.fromkeys((*order, *policy.backends))
        if name in entries
        and entries[name].state in USABLE
        and policy.backends[BackendId(name)].kind != IN_SESSION_KIND
    ]


def health_entry(snapshot: Snapshot, policy: Policy, backend: str, *, now: float) -> HealthEntry:
    shown = views.health_entry(BackendId(backend), snapshot, policy, now=now)
    return msgspec.convert(shown, HealthEntry)


def scope_entry(
    snapshot: Snapshot, policy: Policy, scope: str, *, now: float
) -> HealthEntry | None:
    """The health of one scope by itself; None where it is neither on record nor configured."""
    name = ScopeId(scope)
    is_configured = any(is_scope_of(one, name) for one in policy.backends.values())
    if not is_configured and name not in snapshot.health:
        return None
    return msgspec.convert(views.scope_entry(ScopeId(scope), snapshot, now=now), HealthEntry)


async def health(engine: "Engine", params: HealthParams, caller: Caller) -> HealthResult:
    target = params.target or ""
    if params.everywhere and params.action not in ("list", "get"):
        return await _everywhere(engine, params)
    match params.action:
        case "list":
            found = health_entries(
                engine.snapshot(), engine.settings.policy, now=engine.clock.now(), only=params.only
            )
            return HealthResult(health=found)
        case "get":
            return HealthResult(health=_one(engine, target))
        case "clear":
            return HealthResult(cleared=tuple(await feedback.clear(engine, params.target)))
        case "mark" if params.ttl_s == 0:
            cleared = tuple(await feedback.clear(engine, target))
            return HealthResult(cleared=cleared, health=_one(engine, target))
        case "mark":
            await feedback.mark(
                engine, target, reason=params.reason, ttl_s=params.ttl_s, note=params.note
            )
        case "pause":
            await feedback.pause(engine, target, note=params.note or params.reason)
        case "resume":
            await feedback.resume(engine, target)
    return HealthResult(health=_one(engine, target))


def _concealed(engine: "Engine", text: str | None) -> str | None:
    return engine.world.redact(text) if text else None


async def _everywhere(engine: "Engine", params: HealthParams) -> HealthResult:
    """Set a manual override on every machine of the group, this one included."""
    peers, action = engine.peers, params.action
    if peers is None:
        raise Draining(
            "nothing was changed: health is not shared with other machines; set up [share], or "
            "leave --everywhere out",
            kind="not_shared",
        )
    assert action in ("mark", "clear", "pause", "resume")
    if action == "mark" and params.ttl_s == 0:
        action = "clear"
    reason, note = _concealed(engine, params.reason), _concealed(engine, params.note)
    if action == "pause":
        note = note or reason
    told = await peers.say(params.target, action, reason=reason, ttl_s=params.ttl_s, note=note)
    if action == "clear":
        return HealthResult(cleared=(params.target,) if params.target else tuple(told))
    return HealthResult(health=_one(engine, params.target or ""))


def _one(engine: "Engine", target: str) -> dict[str, HealthEntry]:
    """A backend, or a scope under its own name."""
    now = engine.clock.now()
    snapshot = engine.snapshot()
    name = target.removeprefix("backend:")
    if find_backend(engine.settings.policy, BackendId(name)) is not None:
        return {name: health_entry(snapshot, engine.settings.policy, name, now=now)}
    policy = engine.settings.policy
    entry = scope_entry(snapshot, policy, target, now=now)
    if entry is None:
        entry = scope_entry(snapshot, policy, f"backend:{target}", now=now)
    if entry is None:
        raise Unknown(_unknown(target, engine.settings.policy.backends))
    return {target: entry}


def _unknown(target: str, known: Iterable[str]) -> str:
    return f"There is no backend or scope {target!r}. Known backends: {', '.join(known)}."


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(HEALTH, health),)
