"""`stats`: availability, outages, failovers, calls and cost over time."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import (
    STATE_COLOURS,
    Style,
    UsageError,
    clock,
    duration,
    note,
    percent,
    shorten,
    show,
    table,
    usd,
    wrapped,
)
from fallbackd_client.cli.parsing import since_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

WEEK_S = 7 * 86_400.0
_NAME = 16
"""Columns for a name in front of a strip."""
_WIDTH = 80
MARKS = {
    "healthy": ("█", "#"),
    "cooldown": ("▆", "+"),
    "rate_limited": ("▄", "-"),
    "broken": ("▁", "x"),
    "paused": ("‖", "="),
    "stopped": (" ", " "),
    "": ("·", "."),
}
"""A state in a strip, and the same in ASCII. They differ without their colours too."""
WORDS = {"cooldown": "recovering", "stopped": "no daemon ran", "": "not known"}
_DRAWN = 168
"""Parts of the time on a page: the hours of a week."""
_MOST = 10
"""Rows of a list that is only shown in part."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=since_at,
        metavar="DURATION",
        help="of this time (2h, 30d; default 7d), or since an instant (Unix seconds)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page for a browser (-: print it)")


def run(args: argparse.Namespace, client: Client) -> int:
    since = time.time() - WEEK_S if args.since is None else args.since
    parts = _WIDTH - _NAME - 8 if args.html is None else _DRAWN
    found = client.call("stats", {"since_at": since, "buckets": parts})
    if args.html is not None:
        _write_page(args.html, found)
        return exits.OK
    show(args, found, lambda all_, style: view(all_, style, ascii_only=not _draws(sys.stdout)))
    return exits.OK


def _write_page(path: str, found: Json) -> None:
    """
    Raises:
        UsageError: The file cannot be written.
    """
    from fallbackd_client.cli import page  # of no other use

    text = page.made(found)
    if path == "-":
        print(text, end="")
        return
    half = f"{path}.{os.getpid()}.tmp"
    try:
        # It names directories: for its owner alone, as the records are.
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        os.replace(half, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(half)
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error
    note(f"written: {path}")


def _draws(stream: object) -> bool:
    """Test whether block characters can be written, and are likely to be in the font."""
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") not in ("dumb", "linux")


def view(found: dict[str, Json], style: Style, *, ascii_only: bool) -> str:
    backends = found.get("backends") or []
    if not backends:
        return "nothing is known of this time yet: figures are kept from the first call on"
    since, until = found["since_at"], found["until_at"]
    parts = [
        _heading(found),
        *_strips(backends, style, ascii_only=ascii_only),
        f"{clock(since, until)} to {clock(until, until)}, {duration(found['bucket_s'])} a mark",
        *_legend(backends, ascii_only=ascii_only),
    ]
    sections = [
        ("", _backends(backends, style)),
        ("", _chains(found, style)),
        (_some("outages", found.get("outages_total", 0), found["outages"]), _outages(found, style)),
        ("failovers", _failovers(found, style)),
        *(
            (title, _shares(title, found.get(title) or [], style))
            for title in ("roles", "projects")
        ),
    ]
    for title, text in sections:
        if text:
            parts += ["", *([style.paint(title, "bold")] if title else []), text]
    return "\n".join(parts)


def _heading(found: dict[str, Json]) -> str:
    known = found.get("known_since_at")
    length = duration(found["until_at"] - max(found["since_at"], known or found["since_at"]))
    rescued = found.get("rescued") or 0
    words = f"{length}: {found['answered']} of {found['requests']} requests answered"
    return f"{words}, {rescued} of them by another backend"


def _some(title: str, total: int, rows: Sequence[Json]) -> str:
    shown = min(_MOST, len(rows))
    return title if total <= shown else f"{title} (the last {shown} of {total})"


def _strips(backends: Sequence[Json], style: Style, *, ascii_only: bool) -> list[str]:
    lines = []
    for one in backends:
        name = shorten(one["backend"], _NAME - 1).ljust(_NAME)
        strip = "".join(
            style.paint(MARKS.get(state, MARKS[""])[ascii_only], STATE_COLOURS.get(state))
            for state in one["strip"]
        )
        lines.append(f"{name}{strip} {percent(one.get('availability')):>6}")
    return lines


def _legend(backends: Sequence[Json], *, ascii_only: bool) -> list[str]:
    seen = {state for one in backends for state in one["strip"]}
    words = ", ".join(
        f"{marks[ascii_only] if marks[0] != ' ' else 'blank'} {WORDS.get(state, state)}"
        for state, marks in MARKS.items()
        if state in seen
    )
    return wrapped(words, Style(enabled=False, width=_WIDTH))


def _backends(backends: Sequence[Json], style: Style) -> str:
    rows = [
        [
            one["backend"],
            one["calls"],
            one["failed"] or "",
            "" if one.get("mean_s") is None else duration(one["mean_s"]),
            one["input_tokens"] + one["output_tokens"] or "",
            usd(one.get("cost_usd")),
            ", ".join(f"{reason} {count}" for reason, count in _most(one["reasons"])),
        ]
        for one in backends
    ]
    return table(["BACKEND", "CALLS", "FAILED", "MEAN", "TOKENS", "COST", "REASONS"], rows, style)


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def _chains(found: dict[str, Json], style: Style) -> str:
    rows = [
        [one["chain"], percent(one["availability"]), ", ".join(one["backends"])]
        for one in found.get("chains") or []
        if one.get("availability") is not None
    ]
    return table(["CHAIN", "AVAILABLE", "BACKENDS"], rows, style) if rows else ""


def _outages(found: dict[str, Json], style: Style) -> str:
    until = found["until_at"]
    rows = [
        [
            clock(one["began_at"], until),
            one["backend"],
            one["state"],
            one.get("reason") or "",
            duration((one.get("ended_at") or until) - one["began_at"])
            + ("" if one.get("ended_at") is not None else ", still out"),
        ]
        for one in found["outages"][:_MOST]
    ]
    headers = ["BEGAN", "BACKEND", "STATE", "REASON", "LASTED"]
    return table(headers, rows, style, coloured=2) if rows else ""


def _failovers(found: dict[str, Json], style: Style) -> str:
    rows = [
        [one["left"], one["to"], one["reason"], one["count"]]
        for one in (found.get("failovers") or [])[:_MOST]
    ]
    return table(["FROM", "TO", "REASON", "COUNT"], rows, style) if rows else ""


def _shares(title: str, found: Sequence[Json], style: Style) -> str:
    if not any(one["name"] for one in found):
        return ""
    rows = [
        [
            one["name"] or "(none)",
            one["requests"],
            one["answered"],
            one["rescued"] or "",
            one["input_tokens"] + one["output_tokens"] or "",
            usd(one.get("cost_usd")),
        ]
        for one in found[:_MOST]
    ]
    headers = [title[:-1].upper(), "REQUESTS", "ANSWERED", "RESCUED", "TOKENS", "COST"]
    return table(headers, rows, style)
