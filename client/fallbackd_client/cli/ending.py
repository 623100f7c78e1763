"""Wait for the end of a delegation, and print it."""

from __future__ import annotations

import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.hops import hop_sentence
from fallbackd_client.cli.output import emit_json, note, style_of, warnings_of
from fallbackd_client.cli.progress import Progress
from fallbackd_client.cli.refusals import exit_code, lost_programs, not_found
from fallbackd_client.cli.render import clean, one_line
from fallbackd_client.cli.views import failure_line, question_view, refusal
from fallbackd_client.errors import NoDaemon
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import TextIO

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


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
    """Where another one answered, since the program that was asked for was not found."""
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
