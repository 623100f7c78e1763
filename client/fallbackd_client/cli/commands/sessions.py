"""`sessions`: list sessions, or show one."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, show
from fallbackd_client.cli.views import session_view, sessions_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", nargs="?", help="show only this one")
    parser.add_argument("--limit", type=int, metavar="N", help="at most that many")
    parser.add_argument("--end", action="store_true", help="forget SESSION")


def run(args: argparse.Namespace, client: Client) -> int:
    if args.end:
        if args.session is None:
            raise UsageError("sessions --end takes the SESSION to forget")
        found = client.call("session.end", {"session": args.session})
        show(args, found, lambda _, __: "forgotten")
    elif args.session is not None:
        show(args, client.call("session.get", {"session": args.session}), session_view)
    else:
        params = {} if args.limit is None else {"limit": args.limit}
        found = client.call("session.list", params)
        show(args, found, lambda all_, style: sessions_table(all_.get("sessions") or [], style))
    return exits.OK
