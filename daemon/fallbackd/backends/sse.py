"""Server-sent events out of bytes that come in any pieces, in bounded memory."""

from typing import NamedTuple

from fallbackd.backends.lines import LineBuffer

MAX_EVENT_CHARS = 8 * 1024 * 1024
"""A longer event loses its end, and with it is no JSON any more."""


class Event(NamedTuple):
    name: str
    """Empty where the server gives none."""
    data: str


class EventReader:
    """
    Field names, comments and joined data lines as in the WHATWG HTML standard, 9.2.6.

    Lines that end in a bare CR are read too, though only when a line feed or the end comes.
    """

    def __init__(self) -> None:
        self._buffer = LineBuffer()
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._is_first = True
        self.lines = 0
        """Whole lines so far, comments included: bytes of an unfinished line prove no life."""

    def feed(self, data: bytes) -> list[Event]:
        return self._read(self._buffer.feed(data))

    def end(self) -> list[Event]:
        """What stands without its blank line at the end; some servers leave that out."""
        found = self._read([self._buffer.take(), ""])
        self.lines -= 1
        return found

    def _read(self, lines: list[str]) -> list[Event]:
        found: list[Event] = []
        for whole in lines:
            self.lines += 1
            for line in whole.removesuffix("\r").split("\r"):
                event = self._line(line)
                if event is not None:
                    found.append(event)
        return found

    def _line(self, line: str) -> Event | None:
        if self._is_first:
            line = line.removeprefix("\ufeff")
            self._is_first = False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value[:200]
        elif field == "data":
            room = MAX_EVENT_CHARS - self._size
            self._data.append(value[: max(0, room)])
            self._size += len(value)
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name, "\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "", [], 0
        return event
