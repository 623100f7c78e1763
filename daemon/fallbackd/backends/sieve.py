"""
Whole events of a stream, and of chat completions one that is damaged: was it a piece of the answer?

A proxy on the way may spoil an event, or put one of its own between two. The provider counts the
tokens that it wrote, and most send one with each piece: where the pieces that arrived are as many
as it counted, nothing of the answer was in the event that cannot be read.
"""

import re

import msgspec
from msgspec import Struct

from fallbackd.backends.http_answers import DONE
from fallbackd.lib import foreign_json

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Bound of the reader of the events, which refuses a longer one."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}|\A\n")
"""A line feed at the beginning belongs to a carriage return that has gone on."""
_ONE_EVENT = re.compile(rb"[^\r\n]++(?:\n[^\r\n]++)*+\n\n")


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()
    text: str | None = None

    @property
    def says(self) -> bool:
        said = self.delta
        return bool(said.content or said.reasoning_content or said.reasoning or self.text)


class _Piece(Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()


class Sieve:
    """
    Lets whole events through: what an event is, is known before its first byte has left.

    Args:
        leaves_out: A damaged event of chat completions. Of other APIs all events go through.
    """

    def __init__(self, *, leaves_out: bool = True) -> None:
        self.leaves_out = leaves_out
        self._tail = bytearray()
        self._seen = 0
        """Length of its beginning without a blank line, but for the beginning of one."""
        self._pieces = 0
        self.has_dropped = False

    @property
    def is_clear(self) -> bool:
        """All that has come has been passed on."""
        return not (self._tail or self.has_dropped)

    def feed(self, data: bytes, *, may_drop: bool) -> bytes:
        """Return the events that are complete now."""
        if not self._tail and _ONE_EVENT.fullmatch(data):  # as nearly every piece is
            return data if self._is_to_keep(data, may_drop=may_drop) else b""
        self._tail += data
        kept = bytearray()
        begin = 0
        for blank in _BLANK_LINE.finditer(self._tail, self._seen):
            event = bytes(self._tail[begin : blank.end()])
            begin = blank.end()
            if self._is_to_keep(event, may_drop=may_drop):
                kept += event
        del self._tail[:begin]
        self._seen = max(0, len(self._tail) - 3)
        if len(self._tail) > MAX_EVENT_BYTES:
            kept += self.rest()
        return bytes(kept)

    def rest(self) -> bytes:
        """Take the bytes after the last complete event."""
        tail = bytes(self._tail)
        self._tail.clear()
        self._seen = 0
        return tail

    def accounts_for(self, output_tokens: int | None) -> bool:
        """Check whether all that the provider says to have written has arrived."""
        return bool(output_tokens) and self._pieces == output_tokens

    def _is_to_keep(self, event: bytes, *, may_drop: bool) -> bool:
        if not self.leaves_out or self._is_readable(event) or not may_drop:
            return True
        self.has_dropped = True
        return False

    def _is_readable(self, block: bytes) -> bool:
        found = [line[5:].strip() for line in block.splitlines() if line.startswith(b"data:")]
        data = b"\n".join(found)
        if not data or data == DONE or b"event:" in block:
            return True
        try:
            piece = foreign_json.decode(data, _Piece)
        except msgspec.ValidationError:
            return True  # of another shape, which its reader judges
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self._pieces += sum(choice.says for choice in piece.choices)
        return True
