"""
What the translators of a stream have in common: events of one API in, bytes of the other out.

An end is written only when the end of the other API has been read: `has_ended`. A stream that
breaks off before is broken off here too, and who reads it sees no end.
"""

from typing import Any

import msgspec

from fallbackd.backends.http_answers import DONE
from fallbackd.backends.lines import read_object
from fallbackd.lib.sse import EventReader, ServerSentEvent

MAX_EVENT_BYTES = 32 * 1024 * 1024
_DAMAGED = "the answer is damaged: an event of its stream cannot be read"
DAMAGED = {"error": {"type": "api_error", "message": _DAMAGED}}
BROKEN_OFF = {"error": {"type": "api_error", "message": "the provider broke off its answer"}}


class StreamTranslator:
    def __init__(self) -> None:
        self.has_ended = False
        """The provider has said why its answer ends; what it used may still come."""
        self.is_over = False
        """The last event has been written."""
        self.error: dict[str, Any] | None = None
        """What the provider stated instead of an end, in its own words."""
        self._events = EventReader(max_bytes=MAX_EVENT_BYTES)

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._one, self._events.feed(data)))

    def end(self) -> bytes:
        """What is left to say when nothing more comes; of an answer that has no end, nothing."""
        last = [one for one in self._events.end() if one.data.strip() == DONE or _is_whole(one)]
        rest = b"".join(map(self._one, last))
        return rest + self.close() if self.has_ended and not self.is_over else rest

    def close(self) -> bytes:
        """The end of the answer, as far as it has not been written."""
        self.is_over = True
        return self.write_end()

    def read_event(self, name: str, event: dict[str, Any]) -> bytes:
        """What one event of the one API is in the other."""
        raise NotImplementedError

    def write_end(self) -> bytes:
        raise NotImplementedError

    def write_error(self, value: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def fail(self, value: dict[str, Any]) -> bytes:
        """Its error in the words of the caller's API; nothing follows."""
        self.is_over = True
        self.error = value
        return self.write_error(value)

    def _one(self, event: ServerSentEvent) -> bytes:
        if self.is_over:
            return b""
        data = event.data.strip()
        if data == DONE:
            return self.close() if self.has_ended else b""
        value = read_object(data)
        if event.problem or (value is None and (data or event.name == "error")):
            return self.fail(DAMAGED)
        if value is None:
            return b""
        return self.read_event(event.name, value)


def _is_whole(event: ServerSentEvent) -> bool:
    return not event.problem and read_object(event.data) is not None


def data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + data({"type": kind, **fields})
