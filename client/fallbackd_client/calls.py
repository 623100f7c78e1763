"""
The parts of a call that both clients share: encoding, reading the answer, repeating safely.

Standard library only, and of that only what is cheap to load.
"""

from __future__ import annotations

import json
import os

from fallbackd_client.errors import NoDaemon, NotSendable, ProtocolError, RequestTooLarge, RpcError
from fallbackd_client.wire.framing import MAX_LINE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Json: TypeAlias = Any  # the raw call hands JSON through as it is
    from collections.abc import Callable


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest line we take from the daemon: an answer may be larger than a request."""

READ_ONLY = frozenset(
    {
        "classification.explain",
        "classify",
        "config.check",
        "config.get",
        "daemon.ping",
        "delegation.get",
        "delegation.list",
        "delegation.log",
        "delegation.wait",
        "exchange.list",
        "explain",
        "opencode.status",
        "question.list",
        "rpc.discover",
        "session.get",
        "session.list",
        "share.status",
        "signatures.list",
        "stats",
        "status",
        "suggest",
        "usage",
    }
)
"""Methods that change nothing. Kept equal to `Method.read_only` by a test, not by an import."""

BEGINS_WORK = ("delegate", "delegation.retry", "delegation.reply")
"""Those that promise work: kept equal to `Method.promises` by the same test."""

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 1.0


class Lost(Exception):
    """The connection ended before the answer. Internal: callers see `NoDaemon`."""


def is_repeatable(method: str, params: Mapping[str, Json]) -> bool:
    """Sending it twice is the same as sending it once."""
    if method in READ_ONLY or method in ("delegation.cancel", "delegation.keep"):
        return True
    if method in BEGINS_WORK:
        return bool(params.get("request_id"))
    if method == "health":
        return params.get("action", "list") in ("list", "get")
    if method == "resolve":
        return not params.get("lease", False)
    return False


def with_request_id(method: str, params: Mapping[str, Json] | None) -> dict[str, Json]:
    """
    A copy of the params, in which what begins work carries an id that makes it repeatable; a
    `delegate` also says from inside which attempt it comes.
    """
    own = dict(params) if params else {}
    if method in BEGINS_WORK and not own.get("request_id"):
        own["request_id"] = os.urandom(16).hex()
    if method == "delegate" and not own.get("parent") and (parent := inside_of()) is not None:
        own["parent"] = parent
    return own


def request_id_of(method: str, params: Mapping[str, Json]) -> str | None:
    """The id under which a request that begins work can be sent again, or cancelled."""
    return params.get("request_id") if method in BEGINS_WORK else None


def for_library(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments of `delegate()`: it waits for the end, and its directory may be relative."""
    return in_directory({"wait": "finished", **arguments})


def in_directory(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """A copy whose directory is absolute, since the daemon does not know that of its caller."""
    own = dict(arguments)
    if own.get("cwd"):
        own["cwd"] = os.path.abspath(own["cwd"])
    return own


def inside_of() -> str | None:
    """The attempt, or at least the delegation, in which this process runs."""
    environ = os.environ
    return environ.get("FALLBACKD_ATTEMPT") or environ.get("FALLBACKD_DELEGATION") or None


def patience_s(method: str, params: Mapping[str, Json], default_s: float | None) -> float | None:
    """
    Return how long an answer may take, in seconds; None: without an end.

    Calls that wait for work get the time that they ask the daemon to wait, on top.
    """
    if default_s is None:
        return None
    match method:
        case "delegate":
            match params.get("wait", "settled"):
                case "accepted":
                    return default_s
                case "settled":
                    return default_s + float(params.get("settle_s") or 60.0)
                case _:
                    wait_s = params.get("wait_s")
                    return None if wait_s is None else default_s + float(wait_s)
        case "delegation.wait":
            timeout_s = params.get("timeout_s")
            return None if timeout_s is None else default_s + float(timeout_s)
        case "delegation.cancel":
            return None  # returns when the work is proven stopped
        case _:
            return default_s


def delay_s(number: int) -> float:
    """Pause before try `number` (from 1): doubling up to a second, jittered by half of it."""
    jitter = os.urandom(1)[0] / 255
    longest: float = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** min(number - 1, 10))
    return longest * (0.5 + jitter / 2)


def encode_call(call_id: int, method: str, params: Mapping[str, Json]) -> bytes:
    """
    One line.

    Raises:
        RequestTooLarge: Longer than the daemon takes.
        NotSendable: The params are no JSON, or hold text that is no Unicode.
    """
    message = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        line = text.encode()
    except UnicodeEncodeError as error:
        around = ascii(text[max(0, error.start - 20) : error.end + 20])
        raise NotSendable(
            f"the parameters of {method} hold half a character, which is not text: {around};"
            " take it out, or read its source as UTF-8"
        ) from error
    except (TypeError, ValueError) as error:
        raise NotSendable(f"the parameters of {method} cannot be sent: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise RequestTooLarge(len(line), MAX_LINE_BYTES)
    return line + b"\n"


def read_message(line: bytes, path: str) -> dict[str, Json]:
    """
    One line from the daemon.

    Raises:
        NoDaemon: With cause bad_reply: it is not JSON-RPC.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise NoDaemon("bad_reply", path, detail=f"it said {line[:60]!r}")
    return message


def read_answer(message: dict[str, Json]) -> Json:
    """
    The result of an answer.

    Raises:
        RpcError: It is an error.
        ProtocolError: It is neither.
    """
    if "error" in message:
        error = message["error"]
        if not isinstance(error, dict) or not isinstance(error.get("code"), int):
            raise ProtocolError(f"an error without a code: {error!r:.100}")
        raise RpcError(error["code"], str(error.get("message", "")), error.get("data"))
    if "result" not in message:
        raise ProtocolError("an answer with neither result nor error")
    return message["result"]


def is_answer_to(message: dict[str, Json], call_id: int) -> bool:
    """
    The answer to this call, or an error that the daemon could not match to any call.

    An id of null means that it could not read what we sent; with it the connection is over.
    """
    if "method" in message:
        return False
    answered = message.get("id")
    return answered == call_id or (answered is None and "error" in message)


class Patience:
    """
    The patience of one call: `limit_s` from a loss, with growing pauses between the tries.

    A connection that held for longer than `limit_s` has ended the trouble: what is lost after
    that is lost anew. So a call that waits for hours outlives any number of restarts, and a daemon
    that dies each time at once is given up.
    """

    def __init__(self, limit_s: float, monotonic: Callable[[], float]) -> None:
        self.give_up_at: float | None = None
        """None: nothing was lost yet."""
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._connected_at: float | None = None
        self._tries = 0

    def connected(self) -> None:
        self._connected_at = self._monotonic()

    def lost(self) -> bool:
        """Returns whether to try again."""
        now = self._monotonic()
        has_held = self._connected_at is not None and now - self._connected_at > self._limit_s
        self._connected_at = None
        if self.give_up_at is None or has_held:
            self.give_up_at = now + self._limit_s
            self._tries = 0
        return now < self.give_up_at

    def pause_s(self) -> float:
        """Return the pause before the next try."""
        self._tries += 1
        return delay_s(self._tries)


def what_is_left(method: str, params: Mapping[str, Json], elapsed_s: float) -> Mapping[str, Json]:
    """Return the same call `elapsed_s` later: it waits no longer in all than it was asked to."""
    waits: tuple[str, ...]
    match method:
        case "delegation.wait":
            waits = ("timeout_s",)
        case "delegate":  # its `timeout_s` is about the work, and part of what makes it the same
            waits = ("wait_s", "settle_s")
        case _:
            return params
    given = {name: params[name] for name in waits if isinstance(params.get(name), int | float)}
    return {**params, **{name: max(0.0, value - elapsed_s) for name, value in given.items()}}
