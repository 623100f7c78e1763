"""`sessions`: list sessions, or show one with its turns."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, show
from fallbackd_client.cli.views import session_view, sessions_table

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        show(args, found, lambda all_, style: sessions_table(all_.get("sessions") or [], style))
    return exits.OK


def _session(words: list[str]) -> str | None:
    """The session that is named, with or without the word `show` in front of it."""
    named = words[1:] if words[:1] == ["show"] else words
    if len(named) > 1:
        raise UsageError("sessions takes one SESSION")
    if words and not named:
        raise UsageError("name the SESSION to show; list them with: fallbackd-client sessions")
    return named[0] if named else None
