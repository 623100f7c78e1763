"""`suggest`."""

import os
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from fallbackd.core.ids import BackendId
from fallbackd.core.reasons import NOT_SET_UP
from fallbackd.core.routing import suggest as rules
from fallbackd.engine.requests import Invalid
from fallbackd.fronts.rpc.health_view import health_entries
from fallbackd.fronts.rpc.host import Session
from fallbackd.transports.project_size import project_tokens
from fallbackd_client.wire.methods.suggest import METHOD as METHOD
from fallbackd_client.wire.methods.suggest import CapUse, Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

USABLE = frozenset({"healthy", "cooldown"})


async def _project_tokens(engine: "Engine", root: str | None) -> int:
    """
    Tokens of the project, no more than the largest context that is compared with it.

    Raises:
        Invalid: It is no directory.
    """
    if root is None:
        return 0
    contexts = (one.context_tokens or 0 for one in engine.settings.policy.backends.values())
    enough = max(contexts, default=0) + 1
    try:
        if not os.path.isabs(root):
            raise Invalid(f"project_root: {root!r} is relative; give the absolute path")
        return await anyio.to_thread.run_sync(partial(project_tokens, root, enough=enough))
    except (OSError, ValueError) as error:
        raise Invalid(f"project_root: {root!r} is not a directory that can be read") from error


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    await engine.readiness.look(engine.settings.policy.backends)
    now = engine.clock.now()
    snapshot = engine.snapshot()
    entries = health_entries(snapshot, engine.settings.policy, now=now)
    task = rules.Task(
        goal=params.goal,
        size=params.project_size,
        complexity=params.complexity,
        scope=params.scope,
        project_tokens=await _project_tokens(engine, params.project_root),
    )
    states = {BackendId(name): entry.state for name, entry in entries.items()}
    found = rules.suggest(
        engine.settings.policy,
        task,
        states,
        snapshot.meters,
        now=now,
        missing={BackendId(name) for name, entry in entries.items() if entry.reason in NOT_SET_UP},
    )
    return Result(
        suggestion=found.backend,
        reason=found.reason,
        eta_s=found.eta_s,
        eta_display=None if found.eta_s is None else rules.duration(found.eta_s),
        scores={name: float(points) for name, points in found.scores.items()},
        rate_limits={
            name: CapUse(used=cap.used, cap=cap.cap, unit=cap.unit, window_s=cap.window_s)
            for name, cap in found.caps.items()
        },
        available=found.available,
        unhealthy={name: entry for name, entry in entries.items() if entry.state not in USABLE},
        was_fallback=found.was_fallback,
    )
