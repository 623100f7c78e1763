"""`RpcError`: what goes wrong, as the errors of JSON-RPC. Only this front knows their codes."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from fallbackd.api.errors import ApiError
from fallbackd.core.changes import RejectionKind
from fallbackd.engine.requests import (
    Draining,
    Invalid,
    NotKept,
    NotPermitted,
    Refused,
    Unknown,
    Withdrawn,
)
from fallbackd_client.wire import codes
from fallbackd_client.wire.bounds import PRINTABLE
from fallbackd_client.wire.envelope import Method

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
    """What a handler or the engine refuses, as an error answer; None where it is a bug."""
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
