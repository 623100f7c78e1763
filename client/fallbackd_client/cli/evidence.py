"""Evidence of a failure from the command line, and a failure as text."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli.output import UsageError
from fallbackd_client.cli.render import Style, duration, one_line, when
from fallbackd_client.cli.views import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

_FLAGS = (
    "retryable",
    "retry_same",
    "rotate_credential",
    "hop",
    "shrink_input",
    "needs_human",
    "marks_health",
)
_STREAMS = ["stdout", "stderr", "jsonl", "http", "exception", "unknown"]


def add_evidence_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--stream",
        choices=_STREAMS,
        metavar="S",
        help=f"where the text was seen: {', '.join(_STREAMS)} (default: unknown)",
    )
    add("--exit-code", type=int, metavar="N", help="of the program, where it has ended")
    add("--http-status", type=int, metavar="N")
    add("--header", action="append", metavar="NAME:VALUE", help="of an HTTP answer")
    add("--exception", metavar="TYPE", help="name of an exception; its message is the text")


def evidence(args: argparse.Namespace, file: str | None) -> dict[str, Json]:
    """The `evidence` object; empty where nothing was given."""
    text = None if file is None else _text(file)
    given = {
        "text": text,
        "stream": args.stream or (None if text is None else "unknown"),
        "exit_code": args.exit_code,
        "http_status": args.http_status,
        "headers": _headers(args.header),
        "exception": args.exception,
    }
    return {name: value for name, value in given.items() if value is not None}


def _text(file: str) -> str:
    """Outputs need not be valid UTF-8: what is not is replaced."""
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode(errors="replace")
        with open(file, "rb") as source:
            return source.read().decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _headers(arguments: list[str] | None) -> dict[str, str] | None:
    if not arguments:
        return None
    headers = {}
    for argument in arguments:
        name, colon, value = argument.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header takes NAME:VALUE, not {argument!r}")
        headers[name.strip()] = value.strip()
    return headers


def failure_view(failure: dict[str, Json], style: Style) -> str:
    """A failure with its flags, a line each."""
    head = style.paint(one_line(failure.get("reason", "?")), "red")
    if failure.get("detail"):
        head += f": {one_line(failure['detail'])}"
    lines = [head]
    if failure.get("scope"):
        lines.append(f"  scope       {one_line(failure['scope'])}")
    flags = [name.replace("_", " ") for name in _FLAGS if failure.get(name)]
    lines.append(f"  flags       {', '.join(flags) or 'none'}")
    for label, at, seconds in (
        ("stated", failure.get("stated_reset_at"), failure.get("stated_reset_s")),
        ("wait", failure.get("wait_until_at"), failure.get("wait_s")),
    ):
        if at is not None:
            lines.append(f"  {label.ljust(11)} until {when(at, now())}")
        elif seconds is not None:
            lines.append(f"  {label.ljust(11)} {duration(seconds)}")
    lines.append(
        f"  known by    {one_line(failure.get('signature') or '?')}"
        f" ({one_line(failure.get('confidence') or '?')})"
    )
    if failure.get("evidence"):
        lines.append(f"  evidence    {one_line(failure['evidence'])}")
    return "\n".join(lines)
