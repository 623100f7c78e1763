"""
The last calls of the gateway: which backends were asked, and why the next one was.

In memory, a bounded number of them, and nothing of what was asked or answered.
"""

from collections import OrderedDict
from collections.abc import Sequence

import anyio
from msgspec import Struct, field

from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Verdict

PREFIX = "ex-"
"""Prefix of the ids, which are not those of delegations."""
KEPT = 500
MAX_ASKED_CHARS = 200
"""Limit for the name of a model, which a caller chooses."""
MAX_TEXT_CHARS = 4000
"""Limit for a sentence, which may repeat that name."""


def shown_usd(cost: float) -> str:
    """Never in powers of ten: the vectors of a few words cost a ten-millionth."""
    return f"{cost:.9f}".rstrip("0").removesuffix(".")


class ExchangeStep(Struct, frozen=True, kw_only=True):
    at: float
    event: str
    text: str
    candidates: tuple[Verdict, ...] = ()
    failure: Failure | None = None


class ExchangeRecord(Struct, kw_only=True):
    """
    Attributes:
        asked: The model that the caller named, or the beginning of a long name.
        asked_by: The attempt from inside which it came.
        reason: Why the first backend did not answer.
        state: running, succeeded, failed, or cancelled: the caller has gone.
    """

    exchange: str
    api: str
    asked: str | None
    began_at: float
    asked_by: AttemptId | None = None
    ended_at: float | None = None
    state: str = "running"
    requested: str | None = None
    served_by: str | None = None
    model: str | None = None
    reason: str | None = None
    usage: Usage = Usage()
    steps: list[ExchangeStep] = field(default_factory=list)

    def note(
        self,
        event: str,
        text: str,
        *,
        at: float,
        candidates: Sequence[Verdict] = (),
        failure: Failure | None = None,
    ) -> None:
        step = ExchangeStep(
            at=at,
            event=event,
            text=text[:MAX_TEXT_CHARS],
            candidates=tuple(candidates),
            failure=failure,
        )
        self.steps.append(step)

    def answered(self, by: BackendId, model: str | None, usage: Usage, *, at: float) -> None:
        self.served_by, self.model, self.usage = by, model, usage
        text = f"{by} answered" + ("" if model is None else f" with {model}")
        if usage.input_tokens or usage.output_tokens:
            text += f": {usage.input_tokens} tokens in, {usage.output_tokens} out"
        if usage.cost_usd is not None:
            text += f", {shown_usd(usage.cost_usd)} USD"
        self.note("Answered", text, at=at)


class Exchanges:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, ExchangeRecord] = OrderedDict()
        self._running: set[str] = set()
        self._all_ended: anyio.Event | None = None
        """Only where something waits for it."""

    @property
    def running(self) -> int:
        return len(self._running)

    def begin(
        self,
        name: str,
        *,
        api: str,
        asked: str | None,
        at: float,
        asked_by: AttemptId | None = None,
    ) -> ExchangeRecord:
        record = ExchangeRecord(
            exchange=PREFIX + name,
            api=api,
            asked=None if asked is None else asked[:MAX_ASKED_CHARS],
            began_at=at,
            asked_by=asked_by,
        )
        self._kept[record.exchange] = record
        self._running.add(record.exchange)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return record

    def end(self, record: ExchangeRecord, state: str, *, at: float) -> None:
        record.state, record.ended_at = state, at
        self._running.discard(record.exchange)
        if not self._running and self._all_ended is not None:
            self._all_ended.set()
            self._all_ended = None

    def shift(self, by_s: float) -> None:
        """The wall clock was set by so much: what is under way has begun by the new one."""
        for name in self._running:
            if (record := self._kept.get(name)) is not None:
                record.began_at += by_s

    async def until_ended(self) -> None:
        """Returns when no call is under way."""
        while self._running:
            self._all_ended = self._all_ended or anyio.Event()
            await self._all_ended.wait()

    def find(self, name: str) -> ExchangeRecord | None:
        return self._kept.get(name)

    def __len__(self) -> int:
        return len(self._kept)

    def newest(self, *, limit: int) -> list[ExchangeRecord]:
        return list(reversed(self._kept.values()))[:limit]
