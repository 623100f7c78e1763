"""Server-sent events out of bytes that arrive in any pieces: linear time, bounded memory."""

import re
from typing import NamedTuple

_NAME = re.compile(rb"[\w.:/ -]{0,200}")
_EVENT_LINE = re.compile(rb"event: ?" + _NAME.pattern)
_BLANK = [b"", b""]
_BLANK_LINES = (b"\n\n", b"\r\n\r\n")


class ServerSentEvent(NamedTuple):
    name: str
    """Empty where the server gives none."""
    data: bytes
    """The data lines, joined by line feeds."""
    problem: str = ""
    """Sentence on why the event is unreliable; empty: it arrived as it was sent."""


def ends_event(data: bytes) -> bool:
    """Check whether an event begins after these bytes of a stream."""
    return data.endswith(_BLANK_LINES)


def data_of_one(data: bytes) -> bytes | None:
    """
    The data of an event that begins and ends with these bytes, in one line. None: they are more,
    less, or something else, which takes a reader to tell.
    """
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    lines = data.split(b"\n")
    if lines[-2:] != _BLANK or not 3 <= len(lines) <= 4 or b"\r" in data:
        return None
    if len(lines) == 4 and not _EVENT_LINE.fullmatch(lines[0]):
        return None
    field, _, value = lines[-3].partition(b":")
    return value.removeprefix(b" ") if field == b"data" else None


class EventReader:
    """
    Fields, comments and line ends as in the WHATWG HTML standard, 9.2.6, with two differences.

    An event that has a name and no data is an event too. A line that is not a field of the
    format, which the standard skips, spoils its event: it is the error page or the rest of a
    line that something between put in the place of what was sent.

    Args:
        max_bytes: Of one event. A longer one loses all of its data and says so in `problem`.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        """Beginning of a line that has no end yet."""
        self._is_long = False
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._problem = ""
        self._is_first = True
        self._skips_line_feed = False
        """A carriage return ended the last piece: a line feed belongs to it."""
        self.lines = 0
        """Whole lines so far, comments included: bytes of an unfinished line prove no life."""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        if self._skips_line_feed and data:
            data = data.removeprefix(b"\n")
            self._skips_line_feed = False
        if b"\r" in data:
            self._skips_line_feed = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *rest = data.split(b"\n")
        self._add(first)
        found: list[ServerSentEvent] = []
        for piece in rest:
            found.extend(self._end_line())
            self._add(piece)
        return found

    def end(self) -> list[ServerSentEvent]:
        """Return the last event without its blank line, which some servers leave out."""
        found = [*self._end_line(), *self._dispatch()]
        self.lines -= 1
        return found

    def _add(self, piece: bytes) -> None:
        if self._is_long or len(self._line) + len(piece) > self._max_bytes:
            self._is_long = True
            self._line.clear()
        else:
            self._line += piece

    def _end_line(self) -> list[ServerSentEvent]:
        line, is_long = bytes(self._line), self._is_long
        self._line.clear()
        self._is_long = False
        self.lines += 1
        if self._is_first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._is_first = False
        if is_long:
            self._spoil(f"is longer than {self._max_bytes} bytes")
        elif not line:
            return self._dispatch()
        else:
            self._read(line)
        return []

    def _read(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data_bytes += len(value) + 1
                if self._data_bytes > self._max_bytes:
                    self._spoil(f"is longer than {self._max_bytes} bytes")
                else:
                    self._data.append(value)
            case b"event" if _NAME.fullmatch(value):
                self._name = value.decode("ascii")
            case b"" | b"id" | b"retry":
                pass
            case _:
                self._spoil("has a line that is not a field of an event stream")

    def _spoil(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._data = []

    def _dispatch(self) -> list[ServerSentEvent]:
        found = []
        if self._data or self._name or self._problem:
            found.append(ServerSentEvent(self._name, b"\n".join(self._data), self._problem))
        self._name, self._data, self._data_bytes, self._problem = "", [], 0, ""
        return found
