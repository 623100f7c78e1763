"""Which backend made an answer that a later request may name by its id alone."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry
from fallbackd.fronts.gateway.answers import Refusal

KEPT = 10_000


class Maker(Struct, frozen=True):
    backend: BackendId
    credential: str | None
    """The label of the account that has it."""

    def can_be_asked(self, backends: Mapping[BackendId, Backend]) -> bool:
        """Whether the account is still configured."""
        found = backends.get(self.backend)
        if found is None or not found.enabled:
            return False
        return self.credential in (None, *found.credentials)

    def __str__(self) -> str:
        return self.backend if self.credential is None else f"{self.backend} ({self.credential})"


class Makers:
    """In memory, a bounded number of them. Another provider does not know the conversation."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Maker] = OrderedDict()

    def keep(self, response: str, backend: BackendId | None, credential: str | None) -> None:
        if response and backend is not None:
            self._kept[response] = Maker(backend, credential)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def find(self, response: str) -> Maker | None:
        return self._kept.get(response)

    def forget(self, response: str) -> None:
        self._kept.pop(response, None)

    def fitting(
        self,
        previous: str | None,
        entries: Sequence[Entry],
        backends: Mapping[BackendId, Backend],
    ) -> tuple[tuple[Entry, ...], str | None]:
        """
        Those that can continue an answer, with the account to do it; all and any, where it is not
        known whose it is.

        Raises:
            Refusal: None of them can.
        """
        maker = self._kept.get(previous or "")
        if maker is None:
            return tuple(entries), None
        found = tuple(one for one in entries if one.backend == maker.backend)
        if not found or not maker.can_be_asked(backends):
            raise self.unavailable(previous)
        return found, maker.credential

    def unavailable(self, previous: str | None) -> Refusal:
        maker = self._kept.get(previous or "")
        name = maker or "another backend"
        text = f"previous_response_id: {name} made this response and is not available now;"
        text += " send the whole conversation instead"
        return Refusal(400, text, "previous_response_not_found")
