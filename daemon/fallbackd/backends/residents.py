"""
Ways for programs that stay to take one prompt after another, each a row of `WAYS`.

A way is made for each process. It says what to write to its stdin, and what a line on its stdout
means for the turn; what the line says otherwise is read by the parser of the kind.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from fallbackd.lib import foreign_json

MAX_LINE_BYTES = 32 * 1024 * 1024
"""A longer line says nothing about the turn."""
TURN = "fallbackd.turn"
"""Type of the line of our own that begins a later turn of a process: what it had counted before."""


class Heard(Struct, frozen=True, kw_only=True):
    """The meaning of a line for turns."""

    mark: str = ""
    """What was asked of the process with this mark is done: all that it printed before is older."""
    conversation: str = ""
    began: bool = False
    """It works on a prompt."""
    exit_code: int | None = None
    """The turn has ended, as a program of its own would have ended with this status."""
    answer: bytes = b""
    """The process asked for something; this is the reply."""
    refused: bool = False
    """It does not know what was asked with `mark`."""


NOTHING = Heard()


class Way(Protocol):
    def ready(self, mark: str) -> bytes:
        """Ask for a sign that it is ready, which costs no call of a model."""
        ...

    def before(self, mark: str, mode: str) -> bytes:
        """Ask for the state in which a prompt is taken, and for a sign that it is there."""
        ...

    def interrupt(self, mark: str) -> bytes:
        """End the turn, and stay."""
        ...

    def read(self, line: bytes) -> Heard: ...

    def counted(self) -> Mapping[str, Any]:
        """The usage that the next turn counts as well, for the line that begins it."""
        ...


class ClaudeWay:
    """`claude -p --input-format stream-json --output-format stream-json`, 2.1.197 and later."""

    def __init__(self) -> None:
        self._cost_usd = 0.0

    def ready(self, mark: str) -> bytes:
        return self._ask(mark, {"subtype": "initialize"})

    def before(self, mark: str, mode: str) -> bytes:
        # A tool of the turn before may have changed it.
        return self._ask(mark, {"subtype": "set_permission_mode", "mode": mode})

    def interrupt(self, mark: str) -> bytes:
        return self._ask(mark, {"subtype": "interrupt"})

    def _ask(self, mark: str, request: Mapping[str, str]) -> bytes:
        return _line({"type": "control_request", "request_id": mark, "request": request})

    def read(self, line: bytes) -> Heard:
        event = _object(line)
        match event.get("type"):
            case "control_response":
                response = event.get("response")
                if not isinstance(response, dict):
                    return NOTHING
                refused = response.get("subtype") != "success"
                return Heard(mark=_word(response.get("request_id")), refused=refused)
            case "control_request":
                # Nothing that it may ask is granted: its own rules have decided before.
                refusal = {
                    "subtype": "error",
                    "request_id": _word(event.get("request_id")),
                    "error": "no person is there to answer",
                }
                return Heard(answer=_line({"type": "control_response", "response": refusal}))
            case "result":
                cost = event.get("total_cost_usd")
                if isinstance(cost, int | float) and not isinstance(cost, bool):
                    self._cost_usd = float(cost)
                code = 1 if event.get("is_error") else 0
                return Heard(exit_code=code, conversation=_word(event.get("session_id")))
            case "system" if event.get("subtype") == "init":
                return Heard(began=True, conversation=_word(event.get("session_id")))
            case "assistant" | "user" | "stream_event":
                return Heard(began=True)
            case _:
                return NOTHING

    def counted(self) -> Mapping[str, Any]:
        return {"cost_usd": self._cost_usd}


WAYS: Mapping[str, Callable[[], Way]] = {"claude": ClaudeWay}


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def first_line(counted: Mapping[str, Any]) -> bytes:
    """The line that begins a later turn."""
    return _line({"type": TURN, **counted})


def _object(line: bytes) -> dict[str, Any]:
    """`Any`: a program's JSON of any shape. Empty where it is no object."""
    if not line.lstrip().startswith(b"{"):
        return {}
    try:
        found = foreign_json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 200 else ""
