"""How a prompt ends whose server did not do its part."""

import re
from typing import Any, assert_never

import msgspec

from fallbackd.core.protocol import (
    WRONG_VERSION,
    Exit,
    HttpResponse,
    NoAnswer,
    NotStarted,
    ProcessExit,
)
from fallbackd.transports.opencode.link import CallFailed
from fallbackd.transports.opencode.server import OpencodeServer

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_server(server: OpencodeServer, *, was_posted: bool, at: float) -> Exit:
    """The server did not start, or ended under the prompt."""
    exit = server.exit
    tail = _COLOURS.sub("", server.tail.decode(errors="replace")).strip()
    gone = exit is None or exit.gone
    if server.unsupported:
        return NotStarted(error=WRONG_VERSION, text=server.unsupported, at=at, gone=gone)
    if server.stop_reason:
        # We ended it: for this prompt it is as if the other side had hung up.
        exception = "RemoteProtocolError" if was_posted else "ConnectTimeout"
        text = f"the helper server was ended: {server.stop_reason}\n{tail}".strip()
        return NoAnswer(exception=exception, text=text, at=at, gone=gone)
    match exit:
        case ProcessExit(code=0) | None:
            text = f"the helper server ended by itself\n{tail}".strip()
            return NoAnswer(exception="RemoteProtocolError", text=text, at=at, gone=gone)
        case ProcessExit():
            note = f"the helper server ended by itself\n{tail}".strip()
            return msgspec.structs.replace(exit, note=note, at=at)
        case NotStarted() | NoAnswer() | HttpResponse():
            return exit
        case _:
            assert_never(exit)


def error_of(error: CallFailed) -> dict[str, Any]:
    """In the shape of `session.error`, from an answer that has that shape as a rule."""
    answer = error.body if isinstance(error.body, dict) else {}
    data = answer.get("data")
    data = data if isinstance(data, dict) else {}
    name = answer.get("name")
    return {
        "name": name if isinstance(name, str) else "UnknownError",
        "data": {"message": str(error), **data, "statusCode": error.status},
    }
