"""
Output that comes in lines: buffers for arbitrary chunk borders, and the parser that CLIs share.

A vendor's parser overrides `read_event` (one JSON object of a line) and `read_text` (any other
line) and says in `reply` whether there is an answer. What is common to them all is here: lines
are cut out of bytes, memory is bounded, and the end without an answer becomes `Evidence`.
"""

import re
from typing import Any, assert_never

import msgspec

from fallbackd.core.protocol import (
    AgentText,
    Chunk,
    Evidence,
    Exit,
    HttpResponse,
    NoAnswer,
    NotStarted,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    StreamName,
    Usage,
)
from fallbackd.lib import foreign_json
from fallbackd_conversations.redact import strip_escapes

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Longer lines lose their end. One event with a tool's whole output may take megabytes."""

OUTPUT_CUT = "output_cut"
"""Ours: the program exited well before it had written its last event."""
_CUT = Evidence(
    text="it exited in the middle of an event; the rest of its output is lost",
    stream="jsonl",
    code=OUTPUT_CUT,
)

BURST_S = 1.0
LONG_PAUSE_S = 55.0
"""A try that ends after so long a silence was not refused: it had no answer."""

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 128 * 1024


class LineBuffer:
    """Bytes of one stream to lines. A line may come in any number of pieces."""

    def __init__(self) -> None:
        self.lost_bytes = 0
        """Bytes of lines longer than `MAX_LINE_BYTES`."""
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        first, *rest = data.split(b"\n")
        self._add(first)
        if not rest:
            return []
        lines = [self.take()]
        for piece in rest[:-1]:
            self._add(piece)
            lines.append(self.take())
        self._add(rest[-1])
        return lines

    def take(self) -> str:
        """The line that has no end yet."""
        line = _decode(b"".join(self._pieces))
        self._pieces, self._size = [], 0
        return line

    def _add(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - self._size
        self.lost_bytes += max(0, len(piece) - room)
        piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)


class Excerpt:
    """Beginning and end of a text of any length."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: list[str] = []
        self._head_size = self._tail_size = 0

    def add(self, line: str) -> None:
        line = line[-TAIL_BYTES:]
        if self._head_size < HEAD_BYTES and not self._tail:
            self._head.append(line)
            self._head_size += len(line) + 1
            return
        self._tail.append(line)
        self._tail_size += len(line) + 1
        if self._tail_size > 2 * TAIL_BYTES:
            dropped = 0
            while self._tail_size > TAIL_BYTES and dropped < len(self._tail) - 1:
                self._tail_size -= len(self._tail[dropped]) + 1
                dropped += 1
            del self._tail[:dropped]

    @property
    def text(self) -> str:
        return "\n".join((*self._head, *self._tail))

    def __bool__(self) -> bool:
        return bool(self._head)


def _is_well(exit: ProcessExit) -> bool:
    return exit.code == 0 and not exit.stopped


class CliParser:
    """Lines of JSON on stdout, words for people on stderr."""

    stream_of_errors: StreamName = "stderr"

    def __init__(self, *, plain: bool = False) -> None:
        """`plain`: the user's own command prints text, not the events that we would ask for."""
        self.plain = plain
        self.answered = False
        self.usage = Usage()
        self.error: Evidence | None = None
        """The terminal failure that the program stated as data."""
        self.retrying: Evidence | None = None
        """Failure that it is trying again after."""
        self.stderr = Excerpt()
        self.stdout = Excerpt()
        self.has_events = False
        self.cut = ""
        """The last line of stdout, if it is an event that the program did not finish."""
        self._pause_s = 0.0
        """Pause before the lines that came last."""
        self._heard_at: float | None = None
        self._whole: list[str] = []
        self._buffers: dict[str, LineBuffer] = {}
        self._draft = ""
        """Text passed on of the message that is being written."""
        self._repeated = ""
        """The end of it that a new try of that message has not come to yet."""

    # For a vendor to say.

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        """Read one JSON object of stdout."""
        raise NotImplementedError

    def read_text(self, stream: StreamName, line: str, at: float) -> list[Observation]:
        """Read a line that is not a JSON object."""
        return []

    def reply(self, exit: ProcessExit) -> Reply | None:
        """The answer, where the vendor's own signs say that there is one."""
        raise NotImplementedError

    # What they share.

    def feed(self, chunk: Chunk) -> list[Observation]:
        pause_s = 0.0 if self._heard_at is None else chunk.at - self._heard_at
        if pause_s >= BURST_S:
            self._pause_s = pause_s
        self._heard_at = chunk.at
        seen: list[Observation] = []
        for line in self._buffer(chunk.stream).feed(chunk.data):
            seen.extend(self._read_line(chunk.stream, line, chunk.at))
        return seen or [Output()]

    def finish(self, exit: Exit) -> Outcome:
        streams: tuple[StreamName, ...] = ("stdout", "stderr", "http", "event")
        for stream in streams:
            if stream in self._buffers:
                line = self._buffers[stream].take()
                if stream == "stdout" and line.startswith("{") and read_object(line) is None:
                    self.cut = line
                self._read_line(stream, line, exit.at)
        match exit:
            case ProcessExit():
                return self._ended(exit)
            case NotStarted() | HttpResponse() | NoAnswer():
                return without_process(exit, answered=self.answered)
            case _:
                assert_never(exit)

    def answers(self) -> ProviderAnswered:
        """Note that only a provider can have caused this event."""
        self.answered, self.retrying = True, None
        return ProviderAnswered()

    def was_silent(self) -> bool:
        """Check whether a failure that is reported now, without a cause, is a missing answer."""
        return self._pause_s >= LONG_PAUSE_S

    def whole(self, text: str, exit: ProcessExit) -> Reply | None:
        """An answer that the vendor's own signs call complete: a crash behind it only warns."""
        if exit.code not in (0, None) and self.error is not None:
            return None
        warnings: tuple[str, ...] = ()
        if exit.code not in (0, None) or (exit.signal is not None and not exit.stopped):
            ended = f"status {exit.code}" if exit.signal is None else f"signal {exit.signal}"
            warnings = (f"the answer was complete when the program ended with {ended}",)
        return Reply(
            text=text, usage=self.usage, warnings=warnings, may_be_notice=not self.answered
        )

    def begins(self) -> None:
        """Note that the program writes the message anew that it has not finished, if any."""
        self._repeated = self._draft

    def writes(self, piece: str) -> list[Observation]:
        """
        A piece of a message, as the model writes it.

        A program that asks again after a failure in mid-sentence repeats what it has written: of
        that only what is new is passed on, and all of it where the words differ.
        """
        known, self._repeated = self._repeated, ""
        if known.startswith(piece):
            self._repeated = known[len(piece) :]
            return [AgentText("", again=True)]
        if piece.startswith(known):
            piece = piece[len(known) :]
            self._draft += piece
            return [AgentText(piece)]
        self._draft = self._draft[: len(self._draft) - len(known)] + piece
        return [AgentText(f"\n{self._draft}")]

    def says(self, text: str) -> list[Observation]:
        """A whole message of the agent, of which pieces may have been written before."""
        if not text.strip():
            return []
        self.begins()
        told = [*self.writes(text.rstrip()), AgentText("\n")]
        self._draft = self._repeated = ""
        return [AgentText("".join(one.text for one in told if isinstance(one, AgentText)))]

    def retries(self, evidence: Evidence, wait_s: float | None = None) -> Retrying:
        self.retrying = msgspec.structs.replace(evidence, answered=self.answered)
        return Retrying(evidence=self.retrying, wait_s=wait_s)

    def _buffer(self, stream: str) -> LineBuffer:
        return self._buffers.setdefault(stream, LineBuffer())

    def _read_line(self, stream: StreamName, line: str, at: float) -> list[Observation]:
        if stream == "stdout" and (self.plain or not self.has_events):
            self._whole.append(line)  # as it came: an answer is handed on as it is
        line = strip_escapes(line.rstrip("\r"))
        if not line.strip():
            is_between = self.plain and stream == "stdout" and self.stdout
            return [AgentText("\n")] if is_between else []
        event = read_object(line) if stream in ("stdout", "event") else None
        if event is not None and not self.plain:
            self.has_events = True
            self._whole.clear()
            return self.read_event(event, at)
        return self._read_plain(stream, line, at)

    def _read_plain(self, stream: StreamName, line: str, at: float) -> list[Observation]:
        (self.stdout if stream == "stdout" else self.stderr).add(line)
        seen = self.read_text(stream, line, at)
        # Where text is asked for, what comes on stdout is the answer.
        return [*seen, *self.says(line)] if self.plain and stream == "stdout" else seen

    def _cut_short(self, exit: ProcessExit) -> Evidence | None:
        return _CUT if self.cut and self.has_events and _is_well(exit) else None

    def _text_answer(self) -> Reply | None:
        text = "\n".join(self._whole).strip("\r\n")
        if not strip_escapes(text).strip():
            return None
        return Reply(text=text, usage=self.usage, warnings=self._losses(), may_be_notice=True)

    def _ended(self, exit: ProcessExit) -> Outcome:
        if not self.plain and (reply := self.reply(exit)) is not None:
            return reply
        told = self.error or self.retrying or self._cut_short(exit)
        # A program that was asked for events and prints none (a wrapper, say) still answers.
        may_be_text = self.plain or (told is None and not self.has_events)
        if _is_well(exit) and may_be_text and (answer := self._text_answer()) is not None:
            return answer
        if told is not None:
            return msgspec.structs.replace(
                told, exit_code=exit.code, signal=exit.signal, answered=self.answered
            )
        return self.silent_end(exit)

    def _losses(self) -> tuple[str, ...]:
        lost_bytes = self._buffer("stdout").lost_bytes
        if not lost_bytes:
            return ()
        return (
            f"a line of the answer is longer than {MAX_LINE_BYTES // 2**20} MiB: {lost_bytes} bytes"
            " were left out; the log has the whole output",
        )

    def silent_end(self, exit: ProcessExit) -> Evidence:
        """The end of a program that stated no failure as data: what it printed for people."""
        errors, words = self.stderr.text, self.stdout.text
        text, stream = (errors, "stderr") if errors.strip() else (words, "stdout")
        if words.strip() and self.stream_of_errors == "stdout":
            text, stream = words, "stdout"
        return Evidence(
            text=text or exit.note,
            stream=stream,
            exit_code=exit.code,
            signal=exit.signal or (15 if exit.stopped and exit.code == 0 else None),
            answered=self.answered,
            empty=exit.code == 0,
        )


def without_process(exit: NotStarted | HttpResponse | NoAnswer, *, answered: bool) -> Evidence:
    """The end of a call that was no running program, or never became one."""
    match exit:
        case NotStarted():
            return Evidence(text=exit.text, stream="exception", code=exit.error)
        case HttpResponse():
            return Evidence(
                stream="http", http_status=exit.status, headers=exit.headers, answered=answered
            )
        case NoAnswer():
            return Evidence(
                text=exit.text, stream="exception", exception=exit.exception, answered=answered
            )
        case _:
            assert_never(exit)


def read_object(text: str | bytes) -> dict[str, Any] | None:
    text = text.strip()
    if text[:1] not in ("{", b"{"):
        return None
    try:
        value = foreign_json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return value if isinstance(value, dict) else None


def fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def words(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        return 0
    return int(value)


def cost(used: dict[str, Any]) -> float | None:
    """Cost in US dollars, as OpenRouter states it beside the tokens, whatever the API."""
    found = used.get("cost")
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e9:
        return None
    return float(found)


def tool_key(name: str, arguments: object) -> str:
    """Tool and arguments as one word; the order of keys does not matter."""
    try:
        return f"{name} {msgspec.json.encode(arguments, order='sorted').decode()}"
    except (TypeError, ValueError, RecursionError):
        return name


_STATUS = re.compile(
    r"(?:unexpected status|last status:|API Error:?|status code:?|HTTP) \(?(\d{3})\b"
)


def status_in(text: str) -> int | None:
    """The HTTP status that a message names."""
    found = _STATUS.search(text[:2000])
    return int(found[1]) if found and 400 <= int(found[1]) < 600 else None


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
