"""`sessions`: list sessions, or show one with its turns."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, duration, show, table
from fallbackd_client.cli.views import now, session_view

_LOOKED_AT = 500
"""Newest delegations, for the directory and the words of a session."""
_HEADERS = ["SESSION", "USED", "BACKEND", "MOVED FROM", "RUNNING", "DIRECTORY", "LAST PROMPT"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.output import Style
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session", metavar="SESSION", nargs="*", help="show only this one, with its turns"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="at most that many")
    parser.add_argument("--end", action="store_true", help="forget SESSION")


def run(args: argparse.Namespace, client: Client) -> int:
    session = _session(args.session)
    if args.end:
        if session is None:
            raise UsageError("sessions --end takes the SESSION to forget")
        found = client.call("session.end", {"session": session})
        show(args, found, lambda _, __: "forgotten")
    elif session is not None:
        show(args, client.call("session.get", {"session": session}), session_view)
    else:
        params = {} if args.limit is None else {"limit": args.limit}
        found = client.call("session.list", params)
        last = {} if args.json else _last_of_each(client)
        show(
            args,
            found,
            lambda all_, style: _listed(all_.get("sessions") or [], last, style),
        )
    return exits.OK


def _last_of_each(client: Client) -> dict[str, Json]:
    """The newest delegation of each session, in short."""
    listed = client.call("delegation.list", {"brief": True, "limit": _LOOKED_AT})
    lines = listed.get("lines") or []
    return {line["session"]: line for line in reversed(lines) if line.get("session")}


def _listed(sessions: Sequence[Json], last: dict[str, Json], style: Style) -> str:
    rows = []
    for session in sessions:
        name, used_at = session.get("session", "?"), session.get("last_active_at")
        newest = last.get(name, {})
        moved = session.get("original") not in (None, session.get("current"))
        rows.append(
            [
                name,
                "" if used_at is None else f"{duration(max(0.0, now() - used_at))} ago",
                session.get("current") or "",
                session["original"] if moved else "",
                session.get("running") or "",
                newest.get("cwd") or "",
                newest.get("prompt") or "",
            ]
        )
    return table(_HEADERS, rows, style) if rows else "no sessions"


def _session(words: list[str]) -> str | None:
    """The session that is named, with or without the word `show` in front of it."""
    named = words[1:] if words[:1] == ["show"] else words
    if len(named) > 1:
        raise UsageError("sessions takes one SESSION")
    if words and not named:
        raise UsageError("name the SESSION to show; list them with: fallbackd-client sessions")
    return named[0] if named else None
