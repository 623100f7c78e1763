"""
Messages between the daemon and a runner: a kind, a length, a payload.

| from | kind | payload |
| --- | --- | --- |
| daemon | SPEC | JSON; followed by `stdin_bytes` raw bytes |
| daemon | INPUT | bytes for the program, where it was started with `holds_input` |
| daemon | TURN | JSON `{ends}`, of a program that rests: a turn begins, and ends with the line |
|        |      | of stdout that begins so. Null: it rests, as it does from its start |
| daemon | STOP | JSON `{grace_s}` |
| daemon | SEEN | JSON `{offset}`: the follower holds the part of the log that starts there |
| runner | HELLO | JSON `{pid, version}`, with a pidfd beside it |
| runner | STARTED | JSON `{pid, start, cgroup}`: `cgroup` is its path, or empty |
| runner | REFUSED | JSON `{error, text, path, at}`: nothing was started |
| runner | RING | empty: the recording has grown |
| runner | CHUNK | stream letter, time, bytes that the disk did not take |
| runner | EXIT | the exit record |

A daemon that takes a line up again sends no SPEC; it gets HELLO and STARTED and then the rest. It
may be of another version than the runner: a kind or a field that one does not know is passed over,
and what is there now stays as it is.
"""

import json
import struct
from typing import Any

VERSION = 1
SPEC = b"s"
INPUT = b"i"
TURN = b"w"
STOP = b"t"
SEEN = b"a"
HELLO = b"h"
STARTED = b"p"
REFUSED = b"n"
RING = b"r"
CHUNK = b"c"
EXIT = b"x"

_HEADER = struct.Struct("!cI")
_CHUNK = struct.Struct("!cd")
HEADER_BYTES = _HEADER.size


def pack(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def pack_json(kind: bytes, record: dict[str, Any]) -> bytes:
    """Lone surrogates (undecodable bytes of names and variables) survive as escapes."""
    return pack(kind, json.dumps(record).encode())


def pack_chunk(letter: str, data: bytes, *, at: float) -> bytes:
    return pack(CHUNK, _CHUNK.pack(letter.encode(), at) + data)


def unpack_chunk(payload: bytes) -> tuple[str, float, bytes]:
    letter, at = _CHUNK.unpack_from(payload)
    return letter.decode(), at, payload[_CHUNK.size :]


def read_json(payload: bytes) -> dict[str, Any]:
    """`Any`: a bad record is a bug of ours."""
    record: dict[str, Any] = json.loads(payload)
    return record


class Frames:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self._pending += data
        frames = []
        while len(self._pending) >= HEADER_BYTES:
            kind, size = _HEADER.unpack_from(self._pending)
            if len(self._pending) < HEADER_BYTES + size:
                break
            frames.append((kind, bytes(self._pending[HEADER_BYTES : HEADER_BYTES + size])))
            del self._pending[: HEADER_BYTES + size]
        return frames

    def rest(self) -> bytes:
        """Take the bytes behind the last whole frame."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    @staticmethod
    def header(data: bytes) -> tuple[bytes, int]:
        kind, size = _HEADER.unpack(data)
        return kind, size
