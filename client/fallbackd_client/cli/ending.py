"""Wait for the end of a delegation, and print it."""

from __future__ import annotations

import sys
import threading
import time

from fallbackd_client.calls import Lost, delay_s, encode_call
from fallbackd_client.cli import exits
from fallbackd_client.cli.output import (
    clean,
    duration,
    emit_json,
    is_terminal,
    note,
    one_line,
    shorten,
    size_of,
    style_of,
    warnings_of,
)
from fallbackd_client.cli.views import (
    exit_code,
    failure_line,
    hop_sentence,
    lost_programs,
    not_found,
    question_view,
    refusal,
    standing_by,
)
from fallbackd_client.client import Connection
from fallbackd_client.errors import ClientError, NoDaemon
from fallbackd_client.wire.codes import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import TextIO

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_KINDS = [
    "attempt.started",
    "attempt.phase",
    "attempt.text",
    "delegation.hopped",
    "delegation.ended",
]
_REDRAW_S = 1.0
_LOOK_S = 2.0
_STOP_S = 2.0
_ID_CHARS = 12
"""Digits of an id that say when, to the millisecond."""
_SAID_CHARS = 1000


class Progress:
    """
    Shows what a delegation does until `stop`; nothing at all where `stream` is no terminal.

    Args:
        path: Of the daemon's socket.
        delegation: As it was accepted.
        answers: The terminal that gets each line of text; None: none does.
    """

    def __init__(
        self,
        path: str,
        delegation: dict[str, Json],
        stream: TextIO,
        answers: TextIO | None = None,
    ) -> None:
        self._path = path
        self._known = delegation
        self._stream = stream
        self._answers = answers if answers is not None and is_terminal(answers) else None
        self._said = ""
        """The line that the agent is writing."""
        self._printed: list[str] = []
        """The lines of the attempt that `answers` has got."""
        self._text_since: dict[str, Json] | None = None
        self._held = ""
        """Lines behind a hop that was not yet said."""
        self._hops = 0
        self.shown_hops = 0
        self._look_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if is_terminal(self._stream):
            self._thread = threading.Thread(target=self._run, daemon=True, name="progress")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._write("\r\x1b[K")

    def _run(self) -> None:
        tries = 0
        self._show_hops(clean(self._known.get("hops") or []))
        while not self._stopped.is_set():
            try:
                with Connection(self._path, timeout_s=5.0) as connection:
                    tries = 0
                    self._follow(connection)
            except (Lost, NoDaemon):  # it may be back soon; who waits says for how long
                tries += 1
                self._stopped.wait(delay_s(tries))
            except (ClientError, OSError, ValueError):
                return

    def _follow(self, connection: Connection) -> None:
        delegation = self._known["delegation"]
        wanted: dict[str, Json] = {"kinds": _KINDS, "delegation": delegation}
        if self._text_since is not None:
            wanted["text_since"] = self._text_since
        connection.send(encode_call(1, "events.subscribe", wanted))
        self._look_at = 0.0
        number = 1
        while not self._stopped.is_set():
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + _LOOK_S
                number += 1
                connection.send(encode_call(number, "delegation.get", {"delegation": delegation}))
            try:
                self._take(connection.receive(_REDRAW_S))
            except TimeoutError:
                pass
            self._draw()

    def _take(self, message: dict[str, Json]) -> None:
        event, result = message.get("params"), message.get("result")
        if isinstance(result, dict) and result.get("delegation") == self._known["delegation"]:
            self._known = clean(result)
            self._show_hops(self._known.get("hops") or [])
        elif isinstance(event, dict) and event.get("delegation") == self._known["delegation"]:
            self._hear(clean(event))

    def _hear(self, event: dict[str, Json]) -> None:
        match event.get("kind"):
            case "attempt.started":
                self._begin()
                self._known["active"] = event.get("backend") or self._known.get("active")
                self._known.update(state="running", phase=None)
            case "attempt.phase":
                self._known["phase"] = event.get("phase")
            case "attempt.text":
                self._hear_text(event)
            case "delegation.hopped":
                self._hops += 1
                self._look_at = 0.0  # the record says when the limit ends

    def _begin(self) -> None:
        self._said, self._held, self._printed = "", "", []

    def _hear_text(self, event: dict[str, Json]) -> None:
        place, text = self._text_since or {}, str(event.get("text") or "")
        of = {name: event.get(name) or "" for name in ("attempt", "run")}
        if self._text_since is not None and of != {name: place.get(name, "") for name in of}:
            self._begin()
        self._text_since = {**of, "offset": int(event.get("offset") or 0) + len(text)}
        whole, newline, self._said = f"{self._said}{text}".rpartition("\n")
        self._held += whole + newline
        self._print()

    def _print(self) -> None:
        is_due = self.shown_hops >= self._hops and not self._stopped.is_set()
        if self._answers is None or not self._held or not is_due:
            return
        self._write("\r\x1b[K")
        self._answers.write(self._held)
        self._answers.flush()
        self._printed.append(self._held)
        self._held = ""

    def rest_of(self, answer: str) -> str:
        """The part of the answer that the terminal has not got, once this has stopped."""
        printed = "".join(self._printed).split("\n")[:-1]
        lines = answer.split("\n")
        for at, line in enumerate(printed):
            count = len(printed) - at
            if line == lines[0] and printed[at:] == lines[:count]:
                return "\n".join(lines[count:])
        return answer

    def _show_hops(self, hops: list[Json]) -> None:
        for hop in hops[self.shown_hops :]:
            line = style_of(self._stream).paint(hop_sentence(hop, self._known), "yellow")
            self._write(f"\r\x1b[K{line}\n")
        self.shown_hops = max(self.shown_hops, len(hops))
        self._print()

    def _draw(self) -> None:
        known = self._known
        words = [
            str(known.get("delegation", "?"))[:_ID_CHARS],
            str(known.get("active") or known.get("requested") or "?"),
            str(known.get("phase") or known.get("state") or "?"),
        ]
        if known.get("blocked_by"):
            words[2] = f"waiting for {known['blocked_by']}, which is using the session or directory"
        if isinstance(standby := known.get("standby"), dict):
            words[2] = standing_by(standby)
        if known.get("created_at") is not None:
            words.append(duration(time.time() - known["created_at"]))
        if said := self._said[-_SAID_CHARS:].strip():
            words.append(said)
        width, _ = size_of(self._stream)
        line = shorten(one_line(" · ".join(words)), max(10, width - 1))
        self._write(f"\r\x1b[K{style_of(self._stream).paint(line, 'dim')}")

    def _write(self, text: str) -> None:
        if self._stopped.is_set() and not text.startswith("\r\x1b[K"):
            return
        self._stream.write(text)
        self._stream.flush()


class Waited:
    """
    Args:
        found: The delegation at its end, at a question, or where the wait was over.
        progress: What was printed of it meanwhile.
        is_over: The wait was over first.
    """

    __slots__ = ("found", "is_over", "progress")

    def __init__(self, found: dict[str, Json], progress: Progress | None = None) -> None:
        self.found = found
        self.progress = progress
        self.is_over = bool(found.get("wait_over"))


def begun(client: Client, method: str, params: dict[str, Json]) -> dict[str, Json] | None:
    """The delegation that this call begins; None: interrupted, and said so."""
    try:
        found: dict[str, Json] = client.call(method, params)
    except KeyboardInterrupt:
        note("interrupted; if it was accepted, `fallbackd-client list` shows it")
        return None
    return found


def see_through(args: argparse.Namespace, client: Client, accepted: dict[str, Json]) -> int:
    """Wait for the end of a delegation for `args.wait_s` at most, and print it; the exit code."""
    waited = Waited(accepted)
    delegation = one_line(accepted.get("delegation", "?"))
    next_steps = (
        f"Wait again: fallbackd-client wait {delegation};"
        f" cancel: fallbackd-client cancel {delegation}"
    )
    try:
        if accepted.get("state") not in END_STATES:
            answers = None if args.json else sys.stdout
            waited = wait_for(client, accepted, args.wait_s, answers)
            if waited.is_over:
                if args.json:
                    emit_json(waited.found)
                state = one_line(waited.found.get("state", "?"))
                note(f"{delegation} is still {state}. {next_steps}")
                return exits.TRY_LATER
    except KeyboardInterrupt:
        note(f"interrupted; {delegation} is still running. {next_steps}")
        return exits.INTERRUPTED
    except NoDaemon:
        note(f"{delegation} was accepted; see its result later: fallbackd-client show {delegation}")
        raise
    return finish(args, waited.found, waited=True, progress=waited.progress)


def wait_for(
    client: Client,
    accepted: dict[str, Json],
    wait_s: float | None,
    answers: TextIO | None = None,
) -> Waited:
    """
    Wait for the end of a delegation.

    Shows progress on standard error where that is a terminal, and the lines of the answer on
    `answers` where that is one too.
    """
    params: dict[str, Json] = {"delegation": accepted["delegation"]}
    if wait_s is not None:
        params["timeout_s"] = wait_s
    with Progress(client.path, dict(accepted), sys.stderr, answers) as progress:
        found: dict[str, Json] = client.call("delegation.wait", params)
    return Waited(found, progress)


def _note_lost(shown: dict[str, Json]) -> None:
    """Note where another backend answered, since the requested program was not found."""
    lost = lost_programs(shown)
    if (requested := str(shown.get("requested"))) in lost:
        note(not_found({requested: lost[requested]}))


def finish(
    args: argparse.Namespace,
    found: dict[str, Json],
    *,
    waited: bool,
    progress: Progress | None = None,
) -> int:
    """
    Print the answer to standard output, all else to standard error; the exit code.

    The answer is printed without control characters; `--json` has it exactly.
    """
    state = str(found.get("state"))
    code = exits.of_delegation(state, waited=waited)
    if state == "refused":
        code = exit_code(found)
    if args.json:
        emit_json(found)
        return code
    shown = clean(found)
    for warning in warnings_of(found):
        note(f"warning: {warning}")
    for hop in (shown.get("hops") or [])[0 if progress is None else progress.shown_hops :]:
        note(hop_sentence(hop, shown))
    match state:
        case "succeeded":
            _note_lost(shown)
            answer = str(shown.get("text") or "")
            rest = answer if progress is None else progress.rest_of(answer)
            if rest or not answer:
                print(rest, flush=True)
        case "failed" | "cancelled" | "refused":
            _print_failure(state, shown, found)
        case "handed_back":
            _print_handed_back(shown)
        case "awaiting_answer":
            question = shown.get("question")
            note(question_view(question) if isinstance(question, dict) else "a question is open")
        case _:
            _print_begun(state, shown)
    return code


def _print_failure(state: str, shown: dict[str, Json], found: dict[str, Json]) -> None:
    delegation, failure = shown.get("delegation", "?"), shown.get("failure")
    why = failure_line(failure) if isinstance(failure, dict) else ""
    if state != "refused":
        note(f"{delegation} {state}" + (f": {why}" if why else ""))
        note(f"Details: fallbackd-client explain {delegation}")
        return
    why = why or one_line(shown.get("message") or "no backend in the chain is available")
    note(f"{delegation} refused: {why}")
    if details := refusal(found, sys.stderr):
        print(details, file=sys.stderr, flush=True)


def _print_handed_back(shown: dict[str, Json]) -> None:
    hint = shown.get("handed_back") or {}
    words = [f"{name} {hint[name]}" for name in ("model", "effort") if hint.get(name)]
    hints = f", with {' and '.join(words)}" if words else ""
    note(f"{shown.get('delegation', '?')} was handed back to the caller{hints}")


def _print_begun(state: str, shown: dict[str, Json]) -> None:
    delegation = shown.get("delegation", "?")
    print(delegation, flush=True)
    style = style_of(sys.stderr)
    print(
        f"{style.paint(one_line(state), 'blue')} on {one_line(shown.get('active') or '?')};"
        f" get the answer: fallbackd-client wait {one_line(delegation)}",
        file=sys.stderr,
        flush=True,
    )
