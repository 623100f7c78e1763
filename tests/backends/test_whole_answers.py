"""An answer that is complete stays one when the program crashes behind it."""

import json

import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, Evidence, ProcessExit, Reply

EVENTS = {
    "codex": (
        {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "pong"}},
        {"type": "turn.completed", "usage": {}},
    ),
    "claude": ({"type": "result", "subtype": "success", "is_error": False, "result": "pong"},),
    "gemini": (
        {"type": "message", "role": "assistant", "content": "pong"},
        {"type": "result", "status": "success"},
    ),
}


def finished(name: str, exit: ProcessExit, *, events: int | None = None) -> Reply | Evidence:
    parser = KINDS[name].parser(Options())
    for event in EVENTS[name][:events]:
        parser.feed(Chunk("stdout", json.dumps(event).encode() + b"\n", 1.0))
    return parser.finish(exit)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize(
    ("exit", "word"),
    [
        (ProcessExit(gone=True, code=1), "status 1"),
        (ProcessExit(gone=True, signal=11), "signal 11"),
    ],
)
def test_a_crash_behind_it_is_a_warning(name: str, exit: ProcessExit, word: str) -> None:
    reply = finished(name, exit)
    assert isinstance(reply, Reply)
    assert reply.text == "pong"
    assert reply.warnings == (f"the answer was complete when the program ended with {word}",)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize(
    "exit", [ProcessExit(gone=True, code=0), ProcessExit(gone=True, signal=15, stopped=True)]
)
def test_a_good_end_and_one_that_we_made_warn_of_nothing(name: str, exit: ProcessExit) -> None:
    reply = finished(name, exit)
    assert isinstance(reply, Reply)
    assert reply.warnings == ()


@pytest.mark.parametrize("name", EVENTS)
def test_an_answer_without_its_end_is_none(name: str) -> None:
    assert isinstance(
        finished(name, ProcessExit(gone=True, code=1), events=len(EVENTS[name]) - 1), Evidence
    )
