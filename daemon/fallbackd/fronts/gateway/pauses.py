"""
Failures that end within seconds: the same backend is asked once more, and stays in rotation.

A caller of an interactive program waits a moment for the backend that has its conversation cached
rather than move. All requests for that backend wait alike: it is not asked by others meanwhile.
"""

from functools import partial

import anyio

from fallbackd.core.failures import Failure, Reason
from fallbackd.core.health.record import is_paused
from fallbackd.core.health.scopes import find_backend, scopes_of
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop
from fallbackd.fronts.gateway.answers import NotAnswered

Awaited = tuple[str, str | None, str | None]
"""Backend, model, credential."""

_CHANCE_S = 0.2
"""Before a server that broke once is asked again; up to twice that."""
_BUSY_S = 2.0
"""The same for one that has too much to do; up to three."""
_BLIPS = frozenset({Reason.EMPTY_RESULT, Reason.NETWORK, Reason.OVERLOADED, Reason.SERVER_ERROR})


def wait_before_second(
    failure: Failure | None,
    *,
    status: int | None,
    patience_s: float,
    luck: float,
    is_alone: bool,
) -> float | None:
    """
    How long to wait before the same backend is asked again; None: it is not.

    Args:
        is_alone: No other backend would answer instead.
    """
    if failure is None:
        return None
    if failure.reason is Reason.RATE_LIMIT and failure.wait_s is not None:
        return failure.wait_s if failure.wait_s <= patience_s else None
    is_chance = failure.reason is Reason.SERVER_ERROR and status == 500
    is_blip = is_alone and failure.reason in _BLIPS
    if failure.wait_s is not None or not (is_chance or is_blip):
        return None
    is_busy = failure.reason is Reason.OVERLOADED
    return _BUSY_S * (1 + luck / 2) if is_busy else _CHANCE_S * (1 + luck)


def is_usable(engine: Engine, one: Awaited) -> bool:
    """Whether it is still configured as it was chosen, and paused by no person."""
    name, model, credential = one
    backend = find_backend(engine.settings.policy, BackendId(name))
    if backend is None or not backend.enabled or backend.lacks is not None:
        return False
    if credential not in (backend.credentials or (None,)):
        return False
    health = engine.store.peek().health
    now = engine.clock.now()
    records = (health.get(scope) for scope in scopes_of(backend, model, credential))
    return all(record is None or not is_paused(record, now=now) for record in records)


def withdrawn(one: Awaited) -> NotAnswered:
    """In place of a call to a candidate that may not be used any more."""
    why = f"{one[0]} was paused or configured anew while the call waited for it"
    return NotAnswered(evidence=Evidence(text=why, stream="exception"), unsuited=why)


class Pauses:
    """Which candidates are waited for, and until when."""

    def __init__(self) -> None:
        self._until: dict[Awaited, float] = {}

    async def over(self, engine: Engine, one: Awaited) -> bool:
        """
        Return when the pause is over. False: there was one, and the candidate may not be used any
        more.
        """
        has_waited = False
        while (until := self._until.get(one)) is not None:
            if until <= anyio.current_time():
                del self._until[one]
                break
            has_waited = True
            await anyio.sleep_until(until)
        return not has_waited or is_usable(engine, one)

    async def before_second(
        self, engine: Engine, one: Awaited, evidence: Evidence, *, is_alone: bool
    ) -> bool:
        """
        Return when the same backend is to be asked once more. False: it is not.

        Args:
            evidence: Of its failure.
            is_alone: No other backend would answer instead.
        """
        judging = partial(judged, engine, evidence, backend=one[0])
        wait_s = wait_before_second(
            await off_the_loop(evidence, judging),
            status=evidence.http_status,
            patience_s=engine.settings.policy.patience_s("interactive"),
            luck=engine.world.luck(),
            is_alone=is_alone,
        )
        if wait_s is None or not callers.may_retry(engine):
            return False
        self._until[one] = max(self._until.get(one, 0.0), anyio.current_time() + wait_s)
        return await self.over(engine, one) and is_usable(engine, one)
