"""
Any program that takes a prompt and prints an answer, as the configuration describes it.

With `output = "jsonl"` each line of stdout is read as JSON: events that state an error fail the
attempt, and the answer is the last text that an event carries; `text` takes stdout as it is.
"""

from typing import Any

import msgspec

from fallbackd.backends.commands import encode_prompt, substitute
from fallbackd.backends.lines import CliParser, fields, status_in, words
from fallbackd.backends.outside import SHELLS
from fallbackd.backends.spec import BackendKind, Footprint, Options
from fallbackd.classify.error_json import read_body
from fallbackd.core.protocol import (
    Call,
    CommandLine,
    Evidence,
    GivenUp,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    Reply,
    Work,
)


def start(work: Work, options: Options) -> Call:
    return CommandLine(
        argv=substitute(options.command, work, options),
        cwd=work.cwd,
        stdin=None if options.stdin == "none" else encode_prompt(work.prompt),
        env={**options.env, **work.env},
    )


_TEXT_KEYS = ("result", "response", "text", "content", "output", "answer", "message", "delta")


class GenericParser(CliParser):
    def __init__(self, options: Options) -> None:
        super().__init__(plain=options.output != "jsonl")
        self._ok = options.success_exit_codes
        self._texts: list[str] = []

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        error = event.get("error")
        if (
            event.get("type") == "error"
            or event.get("is_error") is True
            or (error and isinstance(error, dict | str))
        ):
            said = read_body(event)
            text = said[-1].text if said else ""
            self.error = Evidence(
                text=text, stream="jsonl", body=event, http_status=status_in(text)
            )
            return [GivenUp(evidence=self.error)]
        text = _text_of(event)
        if not text:
            return [Output()]
        self.error = None
        self._texts.append(text)
        return [self.answers(), *self.says(text)]

    def reply(self, exit: ProcessExit) -> Reply | None:
        # What it had said when it was stopped is no answer: nothing marks its last words as such.
        if exit.code != 0 or exit.stopped or self.error is not None or not self._texts:
            return None
        return Reply(text=self._texts[-1], usage=self.usage)

    def _ended(self, exit: ProcessExit) -> Outcome:
        # What counts as success is the user's word; below, 0 is success and nothing else.
        if exit.code is not None:
            code = 0 if exit.code in self._ok else exit.code or 1
            exit = msgspec.structs.replace(exit, code=code)
        return super()._ended(exit)


def _text_of(event: dict[str, Any]) -> str:
    for key in _TEXT_KEYS:
        value = event.get(key)
        if isinstance(value, str) and value.strip():
            return value
        inner = fields(value)
        if inner and (text := words(inner.get("text")) or words(inner.get("content"))):
            return text
    return words(fields(event.get("item")).get("text"))


_OWN_PLACES = (
    "${XDG_CONFIG_HOME:-~/.config}/",
    "${XDG_DATA_HOME:-~/.local/share}/",
    "${XDG_STATE_HOME:-~/.local/state}/",
    "~/.",
)


_INTERPRETERS = SHELLS | {"bun", "bunx", "deno", "env", "node", "npx", "perl", "ruby", "uv", "uvx"}


def footprint(options: Options) -> Footprint:
    """
    Places by convention: those named after the program. It is made for an installed agent, which
    would make it at its first start; not for a script of the person's, or what merely runs one.
    """
    name = options.command[0].rpartition("/")[2] if options.command else ""
    if name in ("", ".", ".."):
        return Footprint()
    is_agent = "." not in name and name not in _INTERPRETERS and not name.startswith("python")
    made = "/" if is_agent else ""
    return Footprint(writes=tuple(f"{place}{name}{made}" for place in _OWN_PLACES))


KIND = BackendKind(
    name="generic-cli",
    start=start,
    parser=GenericParser,
    program=lambda options: options.command[0] if options.command else None,
    is_plain=lambda options: options.output == "text",
    footprint=footprint,
)
