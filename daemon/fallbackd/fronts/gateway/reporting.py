"""Reports the outcome of each call to the engine: health, leases and the next candidate."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import Reported
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.turn import Turn
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop, texts_in
from fallbackd.engine.requests import Refused

_OF_THE_REQUEST = frozenset(
    {
        *(Reason.CONTENT_POLICY, Reason.CONTEXT_OVERFLOW),
        *(Reason.FORMAT_ERROR, Reason.PAYLOAD_TOO_LARGE),
    }
)
"""They say nothing of the backend: the conversation stays where its prompt is cached."""


class CallReport:
    """
    What became of one call; said once.

    A backend that the configuration has lost meanwhile has no health to be kept: what is said of
    it is dropped, and changes nothing for the caller.

    Args:
        proves: An answer shows that the backend works, and a call may be its one trial.
        stays: No other backend is asked.
        asked: The body of the request.
    """

    def __init__(
        self,
        engine: Engine,
        asks: Mapping[str, Any],
        chosen: Resolution,
        turn: Turn | None,
        *,
        proves: bool,
        stays: bool = False,
        asked: bytes | None = None,
    ) -> None:
        self._engine = engine
        self.asks = asks
        """For the next call of the same exchange."""
        self._proves = proves
        self._stays = stays
        self._asked = asked
        self.leaves = False
        """What was refused is a part of the conversation: it moves to the next backend."""
        self._is_said = False
        self._call: dict[str, Any] = {
            **asks,
            "backend": chosen.backend,
            "model": chosen.model,
            "credential": chosen.credential,
            "lease": chosen.lease_id,
            "turn": turn,
            "started_at": engine.clock.now(),
        }

    def repeats(self) -> None:
        """The same candidate is asked once more."""
        self._call["further"] = self._call.get("further", 0) + 1

    async def answered(self) -> None:
        """Its provider has begun to answer: a trial is over, and others may ask it too."""
        if self._call["lease"] is not None:
            await self._say("answered")
            self._call["lease"] = None

    async def succeeded(self, usage: Usage) -> None:
        if self._proves:
            self._is_said = True
            await self._say("success", usage=usage)
        else:
            await self.released()

    async def failed(self, evidence: Evidence) -> ReportAnswer | None:
        """None: the backend is not configured any more."""
        self._is_said = True
        judging = partial(judged, self._engine, evidence, backend=self._call["backend"])
        failure = await off_the_loop(evidence, judging)
        is_of_request = failure is not None and failure.reason in _OF_THE_REQUEST
        if self._stays or (is_of_request and not self.leaves):
            await self._left_conversation()
            self.asks = {**self.asks, "session": None}
            self._call["session"] = None
        seen = Reported(**self._call, outcome="failure")
        with suppress(Refused):
            return await callers.report(
                self._engine,
                seen,
                evidence=evidence,
                asked=texts_in(self._asked),
                next_lease=self._proves,
            )
        return None

    async def _left_conversation(self) -> None:
        """What the call was a part of does not go on with the next call of its conversation."""
        if self._call["session"] is not None:
            with suppress(Refused):
                seen = Reported(**{**self._call, "lease": None}, outcome="released")
                await callers.report(self._engine, seen, outlives="nothing")

    async def broken(self, evidence: Evidence) -> ReportAnswer:
        """It failed in the middle of its answer: no other is asked."""
        answer = await self.failed(evidence) or ReportAnswer()
        await give_back(self._engine, self.asks, answer)
        return answer

    async def released(self) -> None:
        """The caller has disconnected, or the call says nothing of the backend."""
        if not self._is_said:
            self._is_said = True
            await self._say("released")

    async def _say(self, outcome: Literal["answered", "success", "released"], **more: Any) -> None:
        with suppress(Refused):
            seen = Reported(**self._call, outcome=outcome, **more)
            await callers.report(self._engine, seen, outlives="nothing")


async def give_back(engine: Engine, asks: Mapping[str, Any], answer: ReportAnswer) -> None:
    """The lease of a next one that will not be called."""
    unused = answer.next
    if unused is not None and unused.lease_id is not None:
        await CallReport(engine, asks, unused, answer.turn, proves=True).released()
