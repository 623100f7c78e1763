"""
A line in, a line out: which method, which params, which answer or error.

    line ── batch? ──▶ one or many requests ──▶ method ──▶ params ──▶ handler ──▶ answer line
              │                 │                 │           │           │
            -32700            -32600            -32601      -32602    as `errors` says

Reading methods answer before the next line is looked at: a task for each request would cost more
than the answer itself.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
import structlog
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from fallbackd.api.handler import ApiError, Handler
from fallbackd.api.host import Caller
from fallbackd.core.decision import RejectionKind
from fallbackd.engine.requests import (
    Draining,
    Invalid,
    NotKept,
    NotPermitted,
    Refused,
    Unknown,
    Withdrawn,
)
from fallbackd.lib.foreign_json import without_halves
from fallbackd_client.wire import codes
from fallbackd_client.wire.bounds import PRINTABLE
from fallbackd_client.wire.envelope import Id, Method, Request, encode_error, encode_result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


# --- errors --------------------------------------------------------------------------------------
# `RpcError`: what goes wrong, as the errors of JSON-RPC. Only this front knows their codes.

_CODES: dict[RejectionKind, int] = {
    "unknown_backend": codes.UNKNOWN_ID,
    "unknown_session": codes.UNKNOWN_ID,
    "busy": codes.BUSY,
    "workspace": codes.BUSY,
    "draining": codes.DRAINING,
    "limit": codes.DRAINING,
    "nesting": codes.NOT_PERMITTED,
    "request_id": codes.INVALID_PARAMS,
    "empty_chain": codes.INVALID_PARAMS,
    "prompt_too_large": codes.INVALID_PARAMS,
    "unknown_question": codes.UNKNOWN_ID,
    "answered": codes.BUSY,
    "choice": codes.INVALID_PARAMS,
    "standby": codes.INVALID_PARAMS,
}

_CODE_OF = {kind: code for code, kind in codes.KINDS.items()}

_PATTERN = f"matching regex {PRINTABLE!r}"
_PATH = re.compile(r"^(?P<what>.*?) - at `\$(?P<path>[^`]*)`$", re.S)


class RpcError(Exception):
    """
    An error answer.

    Args:
        message: A sentence that says what to do.
        kind: The stable word of `data.kind`; None: the one of the code.
        data: More fields of `data`, any JSON.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        kind: str | None = None,
        data: dict[str, Any] | None = None,  # error data of the wire, any JSON
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = {"kind": kind or codes.kind_of(code), **(data or {})}


def invalid_params(error: Exception, method: str) -> RpcError:
    """Params that do not fit: names the field, what it has to be, and what to do."""
    if not isinstance(error, msgspec.ValidationError):
        return RpcError(
            codes.PARSE_ERROR,
            f"The params of {method} are not valid JSON in UTF-8 ({error}). Send valid JSON.",
        )
    found = _PATH.match(str(error))
    what, path = (found["what"], found["path"].lstrip(".")) if found else (str(error), "")
    what = what.replace(_PATTERN, "without control and invisible characters")
    place = f"`{path}` of {method}" if path else f"The params of {method}"
    return RpcError(
        codes.INVALID_PARAMS,
        f"{place}: {what[:1].lower()}{what[1:]}. Correct it and send the request again;"
        " `rpc.discover` describes every field.",
        data={"path": path},
    )


def refuse_misspelt(unknown: Sequence[str], method: Method[Any, Any]) -> None:
    """
    Refuse a field that is one letter away from a known one: it was meant, and would be lost.

    Raises:
        RpcError: Names both. Other unknown fields may be of a later version, and are ignored.
    """
    if not unknown:
        return
    from difflib import get_close_matches  # rarely needed, slow to load

    known = method.params.__struct_encode_fields__
    for name in unknown:
        if near := get_close_matches(name[:100], known, n=1, cutoff=0.8):
            raise RpcError(
                codes.INVALID_PARAMS,
                f"{method.name} has no parameter `{name}`: did you mean `{near[0]}`?",
                data={"path": name, "did_you_mean": near[0]},
            )


def error_of(error: Exception) -> RpcError | None:
    """Make an error answer of what a handler or the engine refuses; None where it is a bug."""
    match error:
        case RpcError():
            return error
        case ApiError(kind=kind):
            return RpcError(_CODE_OF[kind], error.message, data=error.data)
        case Refused(rejection=rejection):
            return RpcError(
                _CODES[rejection.kind],
                rejection.message,
                kind=rejection.kind,
                data=rejection.data,
            )
        case Unknown():
            return RpcError(codes.UNKNOWN_ID, str(error))
        case NotPermitted():
            return RpcError(codes.NOT_PERMITTED, str(error))
        case Invalid():
            return RpcError(codes.INVALID_PARAMS, str(error))
        case NotKept():
            return RpcError(
                codes.DRAINING, str(error), kind="store_unwritable", data={"done": True}
            )
        case Withdrawn():
            return RpcError(codes.INVALID_PARAMS, str(error), kind="withdrawn")
        case Draining(kind=kind):
            return RpcError(codes.DRAINING, str(error), kind=kind)
        case _:
            return None


# --- lines ---------------------------------------------------------------------------------------

MAX_BATCH = 1000
"""Requests in one batch."""

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors of decoding for a wrong syntax; bytes that are no UTF-8 have an error of their own."""

_request_decoder = msgspec.json.Decoder(Request)
_batch_decoder = msgspec.json.Decoder(list[Raw])
_log = structlog.get_logger()


class _Envelope(Struct, frozen=True):
    """The readable part of a request that is none, for its `id`."""

    id: str | int | float | None = None


_envelope_decoder = msgspec.json.Decoder(_Envelope)


class Later:
    """An answer that has to be waited for."""

    __slots__ = ("is_quick", "outlives", "request_id", "run")

    def __init__(
        self,
        run: Callable[[], Awaitable[bytes | None]],
        *,
        is_quick: bool = False,
        outlives: bool = False,
        request_id: Id | UnsetType = None,
    ) -> None:
        self.run = run
        self.outlives = outlives
        """True where it is run to its end although the connection has closed."""
        self.request_id = request_id
        self.is_quick = is_quick
        """Soon there, and cheaper to wait for on the spot than in a task."""


class Garbage(bytes):
    """An error line for what is no request at all."""


class _Unanswered:
    """A caller that expects no answer: that it has hung up says nothing about its request."""

    has_hung_up = False

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __getattr__(self, name: str) -> Any:  # of `Caller`
        return getattr(self._caller, name)


AnswerLine = bytes | Later | None
"""An answer. None: nothing to send (a notification)."""


class Dispatcher:
    def __init__(self, engine: "Engine", handlers: Iterable[Handler[Any, Any]]) -> None:
        self._engine = engine
        self._handlers = {one.method.name: one for one in handlers}

    def take(self, line: bytes, caller: Caller) -> AnswerLine:
        """Serve one line. Never raises for what it holds."""
        try:
            request = _request_decoder.decode(line)
        except msgspec.ValidationError as error:
            if line.lstrip()[:1] == b"[":
                return self._batch(line, caller)
            return _not_a_request(line, error)
        except NOT_JSON as error:
            whole = without_halves(line)
            return _not_json(line, error) if whole == line else self.take(whole, caller)
        except RecursionError:
            return _too_deep()
        return self._request(request, caller)

    def _request(self, request: Request, caller: Caller) -> AnswerLine:
        request_id = request.id
        handler = self._handlers.get(request.method)
        try:
            if handler is None:
                raise _unknown_method(request.method)
            try:
                params = handler.params(request.params, caller)
                unknown = handler.method.unknown_fields(request.params)
                refuse_misspelt(unknown, handler.method)
            except NOT_JSON as error:
                raise invalid_params(error, request.method) from None
            if handler.is_async:
                return Later(
                    lambda: self._finish(handler, params, unknown, request_id, caller),
                    is_quick=handler.is_quick,
                    outlives=handler.outlives,
                    request_id=request_id,
                )
            result = handler.handle(self._engine, params, caller)
            return None if request_id is UNSET else _result(request_id, result, unknown)
        except Exception as error:
            return _failed(request_id, error, request.method, handler)

    async def _finish(
        self,
        handler: Handler[Any, Any],
        params: Any,
        unknown: tuple[str, ...],
        request_id: Id | UnsetType,
        caller: Caller,
    ) -> bytes | None:
        try:
            if request_id is UNSET:
                caller = cast("Caller", _Unanswered(caller))
            result = await handler.answer(self._engine, params, caller)
            return None if request_id is UNSET else _result(request_id, result, unknown)
        except Exception as error:
            return _failed(request_id, error, handler.method.name, handler)

    def _batch(self, line: bytes, caller: Caller) -> AnswerLine:
        try:
            entries = _batch_decoder.decode(line)
        except NOT_JSON as error:
            return _not_json(line, error)
        except RecursionError:
            return _too_deep()
        if not entries:
            return _error(None, codes.INVALID_REQUEST, "A batch is empty. Put requests into it.")
        if len(entries) > MAX_BATCH:
            return _error(
                None,
                codes.INVALID_REQUEST,
                f"A batch holds {len(entries)} requests, at most {MAX_BATCH}. Split it.",
            )
        answers = [self._entry(bytes(entry), caller) for entry in entries]
        waiting = [one for one in answers if isinstance(one, Later)]
        if waiting:
            outlives = any(one.outlives for one in waiting)
            return Later(lambda: _gather(answers), outlives=outlives)
        return _array([one for one in answers if isinstance(one, bytes)])

    def _entry(self, entry: bytes, caller: Caller) -> AnswerLine:
        try:
            request = _request_decoder.decode(entry)
        except NOT_JSON as error:
            return _not_a_request(entry, error)
        except RecursionError:
            return _too_deep()
        return self._request(request, caller)


async def _gather(answers: list[AnswerLine]) -> bytes | None:
    """Wait for all answers of a batch at once."""
    ready: list[bytes | None] = [one if isinstance(one, bytes) else None for one in answers]

    async def put(at: int, later: Later) -> None:
        ready[at] = await later.run()

    async with anyio.create_task_group() as tasks:
        for at, one in enumerate(answers):
            if isinstance(one, Later):
                tasks.start_soon(put, at, one)
    return _array([one for one in ready if one is not None])


def _array(lines: list[bytes]) -> bytes | None:
    """One array of answers; nothing at all where all were notifications."""
    if not lines:
        return None
    return b"[" + b",".join(line.rstrip(b"\n") for line in lines) + b"]\n"


def _result(request_id: Id | UnsetType, result: object, unknown: tuple[str, ...]) -> bytes:
    assert request_id is not UNSET
    if not unknown:
        return encode_result(request_id, result)
    names = ", ".join(f"`{name}`" for name in unknown[:20])
    text = f"Fields that this version does not know were ignored: {names}"
    if getattr(result, "warning", UNSET) is not UNSET:
        own = f"{result.warning} {text}"  # type: ignore[attr-defined]
        return encode_result(request_id, structs.replace(result, warning=own))  # type: ignore[type-var]
    line = encode_result(request_id, result)
    if line.endswith(b"}}\n"):
        # The warning is no field of most result types: it goes in as the last one.
        comma = b"" if line.endswith(b"{}}\n") else b","
        line = line[:-3] + comma + b'"warning":' + msgspec.json.encode(text) + b"}}\n"
    return line


def _failed(
    request_id: Id | UnsetType,
    error: Exception,
    method: str,
    handler: Handler[Any, Any] | None,
) -> bytes | None:
    known = error_of(error)
    if known is None:
        bug_id = secrets.token_hex(4)
        _log.error("rpc.failed", method=method, bug=bug_id, exc_info=error)
        known = RpcError(
            codes.INTERNAL_ERROR,
            f"A bug of fallbackd stopped this request. Its traceback is in the log as {bug_id}:"
            " please report it.",
            data={"bug": bug_id},
        )
    kind = codes.kind_of(known.code)
    if handler is not None and kind not in (*handler.method.errors, "parse_error"):
        _log.error("rpc.undeclared_error", method=method, code=known.code)
    if request_id is UNSET:
        return None
    assert not isinstance(request_id, UnsetType)
    return encode_error(request_id, known.code, known.message, known.data)


def _unknown_method(method: str) -> RpcError:
    return RpcError(
        codes.METHOD_NOT_FOUND,
        f"There is no method {method[:100]!r} in this version. `rpc.discover` lists those that"
        " work.",
    )


def _not_json(line: bytes, error: Exception) -> bytes | None:
    if not line.strip():
        return None  # a blank line asks for nothing
    return _error(
        None,
        codes.PARSE_ERROR,
        f"The line is not valid JSON in UTF-8 ({error}). Send one JSON-RPC 2.0 message a line.",
    )


def _not_a_request(line: bytes, error: Exception) -> bytes | None:
    request_id: Id = None
    try:
        request_id = _envelope_decoder.decode(line).id
    except msgspec.ValidationError:
        pass
    except NOT_JSON as syntax:
        return _not_json(line, syntax)  # the first wrong type was found before the wrong syntax
    except RecursionError:
        return _too_deep()
    return _error(
        request_id,
        codes.INVALID_REQUEST,
        f'This is not a JSON-RPC 2.0 request ({error}). Send an object with `jsonrpc`: "2.0",'
        " `method`, and where you want an answer an `id`.",
    )


def _too_deep() -> bytes:
    return _error(None, codes.PARSE_ERROR, "The message is nested too deep. Flatten it.")


def _error(request_id: Id, code: int, message: str) -> Garbage:
    return Garbage(encode_error(request_id, code, message, {"kind": codes.kind_of(code)}))


def refusal(code: int, message: str, *, request_id: Id = None, **data: object) -> bytes:
    """A line for a peer whose request is not served, or not even read any further."""
    return encode_error(request_id, code, message, {"kind": codes.kind_of(code), **data})
