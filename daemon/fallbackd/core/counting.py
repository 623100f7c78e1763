"""What one decision counts: the meters as they are by now, and which of them it has changed."""

from collections.abc import Iterator, Mapping

from msgspec import structs

from fallbackd.core import day_use, meter
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Meter


class Meters(dict[BackendId, Meter]):
    """Read as a mapping; every method that counts keeps the meter it changes for `changed`."""

    def __init__(self, known: Mapping[BackendId, Meter], *, now: float) -> None:
        super().__init__(known)
        self._now = now
        self._changed: dict[BackendId, None] = {}

    def put(self, used: Meter) -> None:
        self[used.backend] = used
        self._changed[used.backend] = None

    def changed(self) -> Iterator[Meter]:
        return (self[backend] for backend in self._changed)

    def count_start(self, backend: BackendId, *, is_first: bool) -> None:
        """A call is made now. Those beyond the first share the budget of the host for retries."""
        used = meter.started(self.get(backend), backend, now=self._now)
        self.put(meter.demanded(used, backend, is_first=is_first, now=self._now))

    def count_credential(self, backend: BackendId, credential: str | None) -> None:
        if credential is not None:
            self.put(meter.chose(self.get(backend), backend, credential))

    def count_usage(self, backend: BackendId, usage: Usage) -> None:
        if usage == Usage():
            return
        used = meter.used(self.get(backend), backend, usage, now=self._now)
        self.put(structs.replace(used, days=day_use.added(used.days, now=self._now, usage=usage)))

    def count_answer(self, backend: BackendId) -> None:
        """The provider has answered just now."""
        used = self.get(backend) or Meter(backend=backend)
        self.put(structs.replace(used, answered_at=self._now))

    def count_end(self, backend: BackendId, state: str) -> None:
        ended = meter.ended(self.get(backend), backend, state, now=self._now)
        days = day_use.added(ended.days, now=self._now, state=state)
        self.put(structs.replace(ended, days=days))

    def count_time(self, backend: BackendId, *, actual_s: float, estimate_s: float) -> None:
        base = self.get(backend) or Meter(backend=backend)
        self.put(meter.timed(base, actual_s=actual_s, estimate_s=estimate_s))
