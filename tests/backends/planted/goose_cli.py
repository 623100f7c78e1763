"""
Goose: `goose run`, as its public source describes it; never run against the program.

It is no part of the daemon: a test lays it into a copy of the tree, to show that a kind is one file
and one line. Events of `--output-format stream-json`: `message`, `notification`, `model_change`,
`error`, `complete`.
"""

from typing import Any

from fallbackd.backends.commands import command_line, model_of, program
from fallbackd.backends.lines import CliParser, count, fields, status_in, words
from fallbackd.backends.signatures import ONLY_READ
from fallbackd.backends.spec import BackendKind, Options, Setup
from fallbackd.core.protocol import (
    Call,
    Evidence,
    GivenUp,
    Observation,
    Output,
    Phase,
    ProcessExit,
    Reply,
    Usage,
    Work,
)

_MODES = {"read": "chat", "workspace": "auto", "full": "auto"}


def start(work: Work, options: Options) -> Call:
    argv = ["goose", "run", "--no-session", "--quiet", "--output-format", "stream-json"]
    model = model_of(work, options)
    if model:
        argv += ["--model", model]
    argv += ["--instructions", "-"]
    return command_line(work, options, tuple(argv), env={"GOOSE_MODE": _MODES[work.permissions]})


class Parser(CliParser):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self._text = ""
        self._complete = False

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        match event.get("type"):
            case "message":
                return self._read_message(fields(event.get("message")))
            case "complete":
                self._complete = True
                self.usage = Usage(output_tokens=count(event.get("total_tokens")))
                return [Output()]
            case "error":
                text = words(event.get("error"))
                self.error = Evidence(text=text, stream="jsonl", http_status=status_in(text))
                return [GivenUp(evidence=self.error)]
            case _:
                return [Output()]

    def _read_message(self, message: dict[str, Any]) -> list[Observation]:
        if message.get("role") != "assistant":
            return [Output()]
        parts = [fields(part) for part in message.get("content") or []]
        self._text += "".join(words(p.get("text")) for p in parts if p.get("type") == "text")
        return [self.answers(), Phase("answering")]

    def reply(self, exit: ProcessExit) -> Reply | None:
        if not self._complete or self.error is not None or exit.code != 0 or not self._text:
            return None
        return Reply(text=self._text, usage=self.usage)


KIND = BackendKind(
    name="goose",
    start=start,
    parser=Parser,
    rules=ONLY_READ["goose"],
    program=lambda options: program("goose", options),
    setup=Setup(login="goose configure"),
    keeps_to_reading=True,
    structured=True,
)
