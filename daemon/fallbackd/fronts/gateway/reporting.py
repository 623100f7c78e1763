"""Reports the outcome of each call to the engine: health, leases and the next candidate."""

from collections.abc import Mapping
from typing import Any

from fallbackd.backends.passage import AnswerWatch
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import Reported
from fallbackd.core.protocol import Evidence
from fallbackd.core.turn import Turn
from fallbackd.engine import callers
from fallbackd.engine.api import Engine


class CallReport:
    """What became of one call; said once."""

    def __init__(
        self,
        engine: Engine,
        asks: Mapping[str, Any],
        chosen: Resolution,
        turn: Turn | None,
        started_at: float,
    ) -> None:
        self._engine = engine
        self.asks = asks
        self.chosen = chosen
        self._is_said = False
        self._call: dict[str, Any] = {
            **asks,
            "backend": chosen.backend,
            "model": chosen.model,
            "credential": chosen.credential,
            "lease": chosen.lease_id,
            "turn": turn,
            "started_at": started_at,
        }

    def repeats(self) -> None:
        """The same candidate is asked once more."""
        self._call["further"] = 1

    async def succeeded(self, watch: AnswerWatch) -> None:
        self._is_said = True
        seen = Reported(**self._call, outcome="success", usage=watch.usage)
        await callers.report(self._engine, seen, outlives="nothing")

    async def failed(self, evidence: Evidence) -> ReportAnswer:
        self._is_said = True
        seen = Reported(**self._call, outcome="failure")
        return await callers.report(self._engine, seen, evidence=evidence, next_lease=True)

    async def broken(self, evidence: Evidence) -> ReportAnswer:
        """It failed in the middle of its answer: no other is asked."""
        answer = await self.failed(evidence)
        await give_back(self._engine, self.asks, answer)
        return answer

    async def released(self) -> None:
        """The caller has disconnected, which is no failure of the backend."""
        if not self._is_said and self.chosen.lease_id is not None:
            await callers.report(
                self._engine, Reported(**self._call, outcome="released"), outlives="nothing"
            )


async def give_back(engine: Engine, asks: Mapping[str, Any], answer: ReportAnswer) -> None:
    """The lease of a next one that will not be called."""
    unused = answer.next
    if unused is not None and unused.lease_id is not None:
        await CallReport(engine, asks, unused, answer.turn, engine.clock.now()).released()
