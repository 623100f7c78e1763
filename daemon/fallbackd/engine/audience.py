"""Who hears of every commit, and of the progress of what runs: the log first, then subscribers."""

from collections.abc import Callable, Sequence

import structlog

from fallbackd.core.changes import Journaled
from fallbackd.engine.live import Progress

log = structlog.get_logger("engine")

_NOT_SET_UP = frozenset({"not_installed", "not_configured"})
"""What a machine lacks is shown by `status`; in the log it is no incident."""
_UNLOGGED = frozenset(
    {"event", "evidence", "text", "note", "seq", "delegation", "session", "backend"}
)

Listener = Callable[[Journaled | Progress], None]


class Audience:
    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._next = 0

    def add(self, listener: Listener) -> Callable[[], None]:
        """Subscribe to what is published from now on, in order. Returns how to unsubscribe."""
        number = self._next
        self._next += 1
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    def publish(self, notes: Sequence[Journaled]) -> None:
        for one in notes:
            note = one.note
            say = log.debug if note.fields.get("reason") in _NOT_SET_UP else log.info
            say(
                note.kind,
                seq=one.seq,
                delegation=note.delegation,
                session=note.session,
                backend=note.backend,
                **{k: v for k, v in note.fields.items() if k not in _UNLOGGED},
            )
            self.tell(one)

    def tell(self, told: Journaled | Progress) -> None:
        for number, listener in list(self._listeners.items()):
            try:
                listener(told)
            except Exception:  # what is decided is also done when a subscriber has a bug
                log.exception("listener.broke")
                self._listeners.pop(number, None)
