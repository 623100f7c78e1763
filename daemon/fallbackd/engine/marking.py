"""Manual overrides of health: mark, clear, pause, resume."""

from typing import TYPE_CHECKING

from fallbackd.core.changes import Decision
from fallbackd.core.events import HealthCleared, HealthMarked, HealthPaused, HealthResumed
from fallbackd.engine.requests import Unknown

if TYPE_CHECKING:
    from fallbackd.engine.loop import Performer


async def mark(
    engine: "Performer", target: str, *, reason: str | None, ttl_s: float | None, note: str | None
) -> None:
    event = HealthMarked(
        target=target,
        reason=_redacted(engine, reason),
        ttl_s=ttl_s,
        note=_redacted(engine, note),
    )
    _require_known(engine, await engine.handle(event), target)


async def import_mark(
    engine: "Performer", target: str, *, reason: str, since_at: float, ttl_s: float
) -> None:
    """A mark of another program's file, with its own age."""
    await engine.handle(
        HealthMarked(
            target=target,
            reason=_redacted(engine, reason),
            ttl_s=ttl_s,
            since_at=since_at,
            source="import",
        )
    )


async def clear(engine: "Performer", target: str | None) -> list[str]:
    """None: everything. Returns the names of the scopes that were cleared."""
    decision = await engine.handle(HealthCleared(target=target))
    if decision.answer is None:
        raise Unknown(_no_target(engine, target))
    await engine.readiness.look(engine.settings.policy.backends)  # what costs nothing to see
    return list(decision.answer)


async def pause(engine: "Performer", target: str, *, note: str | None) -> None:
    event = HealthPaused(target=target, note=_redacted(engine, note))
    _require_known(engine, await engine.handle(event), target)


async def resume(engine: "Performer", target: str) -> None:
    _require_known(engine, await engine.handle(HealthResumed(target=target)), target)


def _redacted(engine: "Performer", words: str | None) -> str | None:
    return None if words is None else engine.world.redact(words)


def _require_known(engine: "Performer", decision: Decision, target: str) -> None:
    if decision.answer is False:
        raise Unknown(_no_target(engine, target))


def _no_target(engine: "Performer", target: str | None) -> str:
    known = ", ".join(engine.settings.policy.backends)
    return f"no backend or scope {target!r}; known are {known}"
