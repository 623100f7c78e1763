"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys

from fallbackd_client.cli.render import Style, clean, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import TextIO

    from fallbackd_client.calls import Json


class UsageError(Exception):
    """The command line asks for something that cannot be; exit code 2."""


def is_terminal(stream: TextIO) -> bool:
    """A terminal that can move its cursor and show colours."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def style_of(stream: TextIO, *, wide: bool = False) -> Style:
    """
    Colours only on a terminal, and not with `NO_COLOR` (any value but the empty one).

    Args:
        wide: Lines may be longer than the terminal.
    """
    is_shown = is_terminal(stream)
    return Style(
        enabled=is_shown and not os.environ.get("NO_COLOR"),
        width=size_of(stream)[0] if is_shown and not wide else None,
    )


def size_of(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of a terminal; 80 and 24 where it does not say."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return found.columns or 80, found.lines or 24


def emit_json(document: Json) -> None:
    """One document on one line; indented on a terminal. Everything beyond ASCII is escaped."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(document, ensure_ascii=True, indent=indent)
    print(text.replace("\x7f", "\\u007f"), flush=True)


def show(args: argparse.Namespace, document: Json, view: Callable[[Json, Style], str]) -> None:
    """A result as JSON where asked so, else as the view of its cleaned copy."""
    if args.json:
        emit_json(document)
        return
    text = view(clean(document), style_of(sys.stdout, wide=getattr(args, "wide", False)))
    if text:
        print(text, flush=True)
    if isinstance(document, dict):
        for warning in warnings_of(document):
            note(f"warning: {warning}")


def warnings_of(document: dict[str, Json]) -> list[str]:
    """What the daemon wants to be known besides the result."""
    found = document.get("warnings") or []
    if isinstance(found, str):
        found = [found]
    single = document.get("warning")
    words = [*found, *([single] if single else [])]
    return [word if isinstance(word, str) else _problem(word) for word in words]


def _problem(word: Json) -> str:
    if isinstance(word, dict):
        return f"{word.get('path') or 'configuration'}: {word.get('message', '')}"
    return str(word)


def note(text: str) -> None:
    """A line about the work, cleaned."""
    print(safe(text), file=sys.stderr, flush=True)
