"""Agents that a person has open: what their hook and their status line report."""

from typing import TYPE_CHECKING, Any

from msgspec import convert

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.health_view import health_entries, health_entry
from fallbackd.api.host import Caller
from fallbackd.backends.spec import PlanWindow
from fallbackd.core.protocol import Evidence
from fallbackd.core.routing.candidates import candidates_for
from fallbackd.engine import interactive
from fallbackd_client.wire.health_shapes import HealthEntry
from fallbackd_client.wire.methods.interactive import (
    INTERACTIVE_FAILED,
    INTERACTIVE_PLAN,
    InteractiveFailedParams,
    InteractiveFailedResult,
    InteractivePlanParams,
    InteractivePlanResult,
)

if TYPE_CHECKING:
    from fallbackd.core.ids import BackendId
    from fallbackd.engine.api import Engine


async def interactive_failed(
    engine: "Engine", params: InteractiveFailedParams, caller: Caller
) -> InteractiveFailedResult:
    backend = _backend_of(engine, params, caller)
    if backend is None:
        return InteractiveFailedResult()
    evidence = Evidence(text=params.text, stream="jsonl", code=params.error)
    answer = await interactive.failed(engine, backend, evidence, turn=params.turn)
    snapshot, policy = engine.snapshot(), engine.settings.policy
    return InteractiveFailedResult(
        backend=backend,
        failure=None if answer is None else shapes.failure(answer.failure),
        health=health_entry(snapshot, policy, backend, now=engine.clock.now()),
        next=None if answer is None or answer.next is None else answer.next.backend,
    )


async def interactive_plan(
    engine: "Engine", params: InteractivePlanParams, caller: Caller
) -> InteractivePlanResult:
    backend = _backend_of(engine, params, caller)
    if backend is None:
        return InteractivePlanResult()
    windows = convert(params.windows, tuple[PlanWindow, ...], from_attributes=True)
    await interactive.figures(engine, backend, windows)
    now = engine.clock.now()
    entries = health_entries(engine.snapshot(), engine.settings.policy, now=now)
    return InteractivePlanResult(
        backend=backend, health=entries.get(backend), others=_others(engine, backend, entries)
    )


def _backend_of(
    engine: "Engine", params: InteractiveFailedParams | InteractivePlanParams, caller: Caller
) -> "BackendId | None":
    """None: no backend of ours, or an attempt, of which the engine itself reads what it says."""
    if not caller.authority.is_person:
        return None
    return interactive.backend_of(engine.settings, engine.world, params.agent, params.home)


def _others(
    engine: "Engine", backend: "BackendId", entries: dict[str, HealthEntry]
) -> dict[str, HealthEntry]:
    chain = candidates_for(engine.settings.policy, backend=backend, role=None, chain=None)
    names = dict.fromkeys(str(one.backend) for one in chain)
    return {name: entries[name] for name in names if name != backend and name in entries}


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(INTERACTIVE_FAILED, interactive_failed),
    Handler(INTERACTIVE_PLAN, interactive_plan),
)
