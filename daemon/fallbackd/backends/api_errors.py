"""Errors of our own, in the words of each API that is passed on."""

from collections.abc import Mapping
from typing import Any

import msgspec

from fallbackd.backends.spec import ApiMode

_WORDS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    402: ("billing_error", "FAILED_PRECONDITION"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "NOT_FOUND"),
    405: ("invalid_request_error", "INVALID_ARGUMENT"),
    413: ("request_too_large", "INVALID_ARGUMENT"),
    415: ("invalid_request_error", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    503: ("overloaded_error", "UNAVAILABLE"),
    504: ("timeout_error", "DEADLINE_EXCEEDED"),
    508: ("api_error", "FAILED_PRECONDITION"),
}
_OTHER = ("api_error", "INTERNAL")
_FIRST: Mapping[str, Any] = {"id": "", "sequence_number": 0}


def error_body(mode: ApiMode, status: int, message: str, code: str) -> dict[str, Any]:
    """An error in the words of one API."""
    word, google = _WORDS.get(status, _OTHER)
    match mode:
        case "messages":
            return {"type": "error", "error": {"type": word, "message": message}}
        case "generate_content":
            return {"error": {"code": status, "message": message, "status": google}}
        case _:
            return {"error": {"message": message, "type": word, "param": None, "code": code}}


def error_event(mode: ApiMode, message: str, follows: Mapping[str, Any] = _FIRST) -> bytes:
    """
    The event that ends a stream which cannot go on. No API takes it for a good end.

    Args:
        follows: Of an answer of the responses API: its `id` and the next `sequence_number`; the
            `code` of the error, where there is one.
    """
    match mode:
        case "messages":
            name, value = "error", error_body(mode, 503, message, "")
        case "responses":
            name = "response.failed"
            error = {"code": follows.get("code", "server_error"), "message": message}
            failed = {"id": follows["id"], "object": "response", "status": "failed", "error": error}
            failed["output"] = []  # clients read it of each event that ends a response
            value = {
                "type": name,
                "sequence_number": follows["sequence_number"],
                "response": failed,
            }
        case _:
            name, value = "", error_body(mode, 503, message, "upstream_failed")
    head = f"event: {name}\n".encode() if name else b""
    return b"\n\n" + head + b"data: " + msgspec.json.encode(value) + b"\n\n"
