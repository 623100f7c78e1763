"""
The messages of both eras of MCP, without I/O.

Up to 2025-11-25 a client opens a session by `initialize`. From 2026-07-28 on there is none: each
request names its version and what its client can do in `_meta`.

Source: https://modelcontextprotocol.io/specification/2025-11-25 and …/2026-07-28/basic.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading

from fallbackd_client import __version__
from fallbackd_client.wire.codes import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fallbackd_client.calls import Json


MAX_LINE_BYTES = 8 * 1024 * 1024
"""Twice what the daemon takes: a line that is too large for it is refused with its reason."""
_KEPT_BYTES = 4096
_CHUNK_BYTES = 65536
_PIECE_BYTES = select.PIPE_BUF
"""Written without waiting where there is room at all."""
_UNREAD_S = 2
"""How long a client that has closed its side is given to read what was said to it."""


class TooLong:
    """A line beyond the limit, of which only the two ends were kept."""

    __slots__ = ("head", "size_bytes", "tail")

    def __init__(self, head: bytes, tail: bytes, size_bytes: int) -> None:
        self.head = head
        self.tail = tail
        self.size_bytes = size_bytes


class LineReader:
    """Lines of a file descriptor. One that is too long is skipped, what follows is read again."""

    def __init__(self, descriptor: int, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._head = b""
        self._tail = b""

    def lines(self) -> Iterator[bytes | TooLong]:
        """Yield lines until the other side closes; an unfinished last line counts as one."""
        while data := self._read():
            *whole, rest = data.split(b"\n")
            for piece in whole:
                self._take(piece)
                yield self._cut()
            self._take(rest)
        if self._size_bytes:
            yield self._cut()

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:
            return b""

    def _take(self, piece: bytes) -> None:
        if not piece:
            return
        self._size_bytes += len(piece)
        if self._size_bytes <= self._max_bytes:
            self._pieces.append(piece)
            return
        if self._pieces:
            held = b"".join(self._pieces)
            self._head, self._tail = held[:_KEPT_BYTES], held[-_KEPT_BYTES:]
            self._pieces = []
        self._head = self._head or piece[:_KEPT_BYTES]
        self._tail = (self._tail + piece)[-_KEPT_BYTES:]

    def _cut(self) -> bytes | TooLong:
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes > self._max_bytes:
            found = TooLong(self._head, self._tail, size_bytes)
            self._head = self._tail = b""
            return found
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class LineWriter:
    """
    Whole lines to a file descriptor, from any thread.

    Args:
        other: Where the same client's messages come from.
    """

    def __init__(self, descriptor: int, other: int) -> None:
        self._descriptor = descriptor
        self._other = other
        self._lock = threading.Lock()
        self._is_given_up = False

    def send(self, message: Json) -> None:
        """Nothing happens where the reader is gone: the end of the input says so too."""
        # ASCII only: any other text may hold what a client takes for the end of a line.
        data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            try:
                while data and self._has_room():
                    data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
            except OSError:
                self._is_given_up = True

    def _has_room(self) -> bool:
        """
        A client may be slow for as long as it likes, unless it has closed its own side: then
        another process may hold the pipe open without ever reading.
        """
        room, ended = select.poll(), select.poll()
        room.register(self._descriptor, select.POLLOUT)
        ended.register(self._other, 0)
        while not self._is_given_up and not room.poll(_UNREAD_S * 1000):
            self._is_given_up = bool(ended.poll(0))
        return not self._is_given_up

    def is_read(self) -> bool:
        """False once the other end of a pipe or socket is closed."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return not poll.poll(0)


def take_over() -> tuple[int, int]:
    """
    The descriptors of standard input and output for this module alone.

    From now on the process has an empty standard input, and what it prints goes to standard
    error.
    """
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return reading, writing


SESSION_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)
UNSUPPORTED_VERSION = -32022
TOO_MANY_CALLS = -32000
_META = "io.modelcontextprotocol/"
NAME = "fallbackd"
INSTRUCTIONS = (
    "Hands work to another agent CLI or API, and fails over to the next one when it is rate-limited"
    " or out of quota. `status` shows which backends are available; `delegate` runs a prompt and"
    " says which backend answered and why. Where `delegate` returns state `running`, call `wait`"
    " with its delegation. Give a complete prompt: the other agent sees the directory, not this"
    " conversation."
)


class Malformed(Exception):
    """A message that is answered with an error of the protocol, or not at all."""

    def __init__(self, code: int, message: str, request_id: Json = None, data: Json = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.request_id = request_id
        self.data = data


class Peer:
    """
    The facts about the client.

    Attributes:
        name: As it calls itself.
        capabilities: As it declares them.
        is_stateless: It speaks the later era.
    """

    __slots__ = ("capabilities", "is_stateless", "name")

    def __init__(
        self, name: str = "", capabilities: Json = None, *, is_stateless: bool = False
    ) -> None:
        self.name = name
        self.capabilities: dict[str, Json] = capabilities if isinstance(capabilities, dict) else {}
        self.is_stateless = is_stateless

    @property
    def can_elicit(self) -> bool:
        """Return whether it shows forms; without a mode it means them: once there was no other."""
        found = self.capabilities.get("elicitation")
        return isinstance(found, dict) and (not found or "form" in found)

    @property
    def has_roots(self) -> bool:
        return isinstance(self.capabilities.get("roots"), dict) and not self.is_stateless


class Request:
    """A request or, without an id, a notification."""

    __slots__ = ("has_id", "id", "meta", "method", "params")

    def __init__(self, method: str, params: dict[str, Json], message: Mapping[str, Json]) -> None:
        self.method = method
        self.params = params
        self.has_id = "id" in message
        self.id = message.get("id")
        meta = params.get("_meta")
        self.meta: dict[str, Json] = meta if isinstance(meta, dict) else {}

    def peer(self, known: Peer) -> Peer:
        """
        Return the client: as this request says, else as the session knows.

        Raises:
            Malformed: It names a version that is not spoken here.
        """
        key = _META + "protocolVersion"
        if key not in self.meta:
            return known
        version = self.meta[key]
        if version not in STATELESS_VERSIONS:
            raise Malformed(
                UNSUPPORTED_VERSION,
                f"the protocol version {str(version)[:40]!r} is not supported;"
                f" use one of {', '.join(_supported())}",
                self.id,
                {"supported": _supported(), "requested": str(version)[:40]},
            )
        info = self.meta.get(_META + "clientInfo")
        name = info.get("name") if isinstance(info, dict) else None
        return Peer(str(name or ""), self.meta.get(_META + "clientCapabilities"), is_stateless=True)


class Answer:
    """The answer to a request of ours; without a result the client refused it."""

    __slots__ = ("id", "result")

    def __init__(self, answer_id: Json, result: Json) -> None:
        self.id = answer_id
        self.result = result


def read(line: bytes) -> list[Request | Answer | Malformed]:
    """Parse one line: one message, or several of a batch, as 2025-03-26 allowed."""
    try:
        found = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return [Malformed(PARSE_ERROR, f"the line is not JSON: {str(error)[:200]}")]
    if isinstance(found, list) and found:
        return [_message(one) for one in found]
    return [_message(found)]


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is not a number of JSON")


def _message(found: Json) -> Request | Answer | Malformed:
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return Malformed(INVALID_REQUEST, "not a message of JSON-RPC 2.0", _id_of(found))
    method = found.get("method")
    if method is None and ("result" in found or "error" in found):
        return Answer(found.get("id"), found.get("result"))
    if not isinstance(method, str):
        return Malformed(INVALID_REQUEST, "`method` is missing", _id_of(found))
    if "id" in found and _id_of(found) is None:
        return Malformed(INVALID_REQUEST, "`id` has to be a string or an integer")
    params = found.get("params")
    if params is not None and not isinstance(params, dict):
        return Malformed(INVALID_PARAMS, "`params` has to be an object", _id_of(found))
    return Request(method, params or {}, found)


def _id_of(found: Json) -> Json:
    given = found.get("id") if isinstance(found, dict) else None
    is_usable = isinstance(given, str | int) and not isinstance(given, bool)
    return given if is_usable else None


_ID = re.compile(rb'"id"\s*:\s*("[^"\\]{0,200}"|-?\d{1,18})')


def too_long(line: TooLong, max_bytes: int) -> Malformed:
    """
    Name the request by its id, where one end of the line shows it.

    Clients write it either first or last; one inside of the arguments is cut away with them.
    """
    last = re.search(_ID.pattern + rb"\s*(,\s*\"jsonrpc\"\s*:\s*\"2\.0\"\s*)?\}\s*$", line.tail)
    first = _ID.search(line.head.partition(b'"params"')[0])
    found = first or last
    return Malformed(
        INVALID_REQUEST,
        f"the message has {line.size_bytes} bytes and the limit is {max_bytes}: put large input"
        " into a file in the working directory and name the file in the prompt",
        None if found is None else json.loads(found[1]),
    )


def result(request_id: Json, found: dict[str, Json], peer: Peer) -> Json:
    if peer.is_stateless and "resultType" not in found:
        found = {"resultType": "complete", **found}
    return {"jsonrpc": "2.0", "id": request_id, "result": found}


def error(malformed: Malformed) -> Json:
    shown = {"code": malformed.code, "message": malformed.message}
    if malformed.data is not None:
        shown["data"] = malformed.data
    return {"jsonrpc": "2.0", "id": malformed.request_id, "error": shown}


def notification(method: str, params: dict[str, Json]) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def initialized(params: Mapping[str, Json]) -> dict[str, Json]:
    """The answer to `initialize`: the version that was asked for where it is known."""
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in SESSION_VERSIONS else SESSION_VERSIONS[-1],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": _server_info(),
        "instructions": INSTRUCTIONS,
    }


def discovered() -> dict[str, Json]:
    """The answer to `server/discover`."""
    return {
        "supportedVersions": _supported(),
        "capabilities": {"tools": {}},
        "instructions": INSTRUCTIONS,
        **_UNCACHED,
        "_meta": {_META + "serverInfo": _server_info()},
    }


def listed(tools: list[Json], peer: Peer) -> dict[str, Json]:
    return {"tools": tools, **(_UNCACHED if peer.is_stateless else {})}


_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


def _server_info() -> dict[str, str]:
    return {"name": NAME, "version": __version__}


def _supported() -> list[str]:
    return [*STATELESS_VERSIONS, SESSION_VERSIONS[-1]]
