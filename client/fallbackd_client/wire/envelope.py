"""
JSON-RPC 2.0 around every message: what a line decodes to, and how answers are encoded.

`Request.id` tells three things apart: absent (`UNSET`, a notification: never answered), null, and
a value. `params` stays undecoded (`Raw`) until the method is known.
"""

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Id = str | int | float | None
"""JSON-RPC leaves the choice to the caller; an answer carries it back unchanged."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`jsonrpc` is checked by its type: anything but "2.0" is no request."""

    jsonrpc: Literal["2.0"]
    method: str
    params: Raw | UnsetType = UNSET
    id: Id | UnsetType = UNSET


class ErrorObject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: int
    message: str
    """A sentence that says what to do."""
    data: Any = UNSET  # any JSON value; an object with `kind` from this daemon


class Response(Struct, frozen=True, kw_only=True):
    """Exactly one of `result` and `error`."""

    id: Id
    jsonrpc: Literal["2.0"] = "2.0"
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _Answer(Struct, frozen=True, kw_only=True):
    """A `Response` with a result that is yet to be encoded."""

    id: Id
    jsonrpc: Literal["2.0"] = "2.0"
    result: Any  # of any method


class Notification(Struct, frozen=True, kw_only=True):
    method: str
    params: Raw | UnsetType = UNSET
    jsonrpc: Literal["2.0"] = "2.0"


P = TypeVar("P", bound=Struct)
R = TypeVar("R")


Promise = Literal["nothing", "record", "work"]
"""
What the answer of a method promises to outlive the daemon: nothing; a record of what was done; or
work, which is on record before it begins, and does not begin for a caller that has hung up.
"""

Who = Literal["any", "own", "person"]
"""
Who may call a method. `any`: a process inside an attempt too, which gets no more than it has
itself, and of others sees no prompt, path or account; `own`: such a process for what it has begun,
as if there were nothing else; `person`: no such process.
"""

COMMON = ("invalid_params", "internal", "too_many")
"""Kinds of errors that a call of any method may be answered with."""


class Method(Generic[P, R]):
    """
    A method of the contract: its name and the types of both directions.

    Args:
        name: As in `Request.method`.
        params: A Struct; unknown fields of it are ignored, `unknown_fields` names them.
        result: Anything msgspec can describe.
        read_only: Changes nothing for any params: answered inline, repeated freely.
        who: May call it.
        who_reads: May call it with params that only read (`only_reads`).
        promises: Of a method that changes something; required there.
        errors: Kinds of errors besides those that every method may answer with.
        summary: One line for `rpc.discover`.
        example: Params and a result for `rpc.discover`; fields left out have their defaults.
    """

    __slots__ = (
        "errors",
        "example",
        "name",
        "params",
        "promises",
        "read_only",
        "result",
        "summary",
        "who",
        "who_reads",
    )

    def __init__(
        self,
        name: str,
        *,
        params: type[P],
        result: Any,  # `type[R]` cannot be said of a union; `Method[P, R]` is annotated instead
        read_only: bool,
        who: Who,
        who_reads: Who | None = None,
        promises: Promise | None = None,
        summary: str,
        errors: tuple[str, ...] = (),
        example: tuple[dict[str, Any], Any] | None = None,  # JSON
    ) -> None:
        if read_only is (promises is not None):
            raise TypeError(f"{name}: say what it promises exactly where it changes something")
        self.name = name
        refused = () if who == "any" else ("not_permitted",)
        self.errors = tuple(dict.fromkeys((*COMMON, *refused, *errors)))
        self.example = example
        self.params = params
        self.result = result
        self.promises: Promise = promises or "nothing"
        self.read_only = read_only
        self.who: Who = who
        self.who_reads: Who = who_reads or who
        self.summary = summary

    def __repr__(self) -> str:
        return f"Method({self.name!r})"

    def decode_params(self, raw: Raw | UnsetType) -> P:
        """
        Read the params of a request; absent and null count as no fields at all.

        Raises:
            msgspec.ValidationError: With the path of the field (`$.timeout_s`).
            msgspec.DecodeError: Where the text is not JSON.
        """
        text = Raw(b"{}") if raw is UNSET or _is_null(raw) else raw
        return msgspec.json.decode(text, type=self.params)

    def unknown_fields(self, raw: Raw | UnsetType) -> tuple[str, ...]:
        """Names of fields that this version does not know, for a warning."""
        if raw is UNSET or _is_null(raw):
            return ()
        known = set(self.params.__struct_encode_fields__)
        return tuple(sorted(msgspec.json.decode(raw, type=dict[str, Raw]).keys() - known))


def _is_null(raw: Raw) -> bool:
    view = memoryview(raw)  # `Raw` compares by identity, and may be 4 MiB: copied only if short
    return view.nbytes == 4 and view.tobytes() == b"null"


_encoder = msgspec.json.Encoder()


def encode(message: Struct) -> bytes:
    """One line, its line end included."""
    return _encoder.encode(message) + b"\n"


def encode_result(request_id: Id, result: object) -> bytes:
    return encode(_Answer(id=request_id, result=result))


def encode_error(request_id: Id, code: int, message: str, data: object = UNSET) -> bytes:
    return encode(Response(id=request_id, error=ErrorObject(code=code, message=message, data=data)))


def encode_notification(method: str, params: object) -> bytes:
    return encode(Notification(method=method, params=Raw(_encoder.encode(params))))
