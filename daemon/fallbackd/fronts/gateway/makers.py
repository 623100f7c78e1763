"""Which backend made an answer that a later request may continue by its id alone."""

from collections import OrderedDict
from collections.abc import Sequence

from fallbackd.core.policy import Entry
from fallbackd.fronts.gateway.answers import Refusal

KEPT = 10_000


class Makers:
    """In memory, a bounded number of them. Another provider does not know the conversation."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()

    def keep(self, response: str, backend: str) -> None:
        if response:
            self._kept[response] = backend
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def fitting(self, previous: str | None, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """
        Those that can continue an answer; all, where it is not known whose it is.

        Raises:
            Refusal: None of them can.
        """
        maker = self._kept.get(previous or "")
        found = tuple(one for one in entries if maker is None or one.backend == maker)
        if not found:
            raise self.unavailable(previous)
        return found

    def unavailable(self, previous: str | None) -> Refusal:
        maker = self._kept.get(previous or "", "another backend")
        text = f"previous_response_id: {maker} made this response and is not available now;"
        text += " send the whole conversation instead"
        return Refusal(400, text, "previous_response_not_found")
