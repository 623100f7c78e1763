"""`wait`: wait for the end of a delegation, print its answer."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.durations import duration_s
from fallbackd_client.cli.ending import finish, wait_for
from fallbackd_client.cli.output import emit_json, note
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    parser.add_argument(
        "--wait-for",
        dest="wait_s",
        type=duration_s,
        metavar="DURATION",
        help="wait this long at most (90s, 5m, 1h30m); the work continues",
    )
    parser.add_argument("--timeout", dest="wait_s", type=duration_s, help=argparse.SUPPRESS)


def run(args: argparse.Namespace, client: Client) -> int:
    found = client.call("delegation.get", {"delegation": args.delegation})
    shown_hops = 0
    if found.get("state") not in END_STATES:
        waited = wait_for(client, found, args.wait_s)
        found, shown_hops = waited.found, waited.shown_hops
        if waited.is_over:
            if args.json:
                emit_json(found)
            note(f"{args.delegation} is still {found.get('state')}")
            return exits.TRY_LATER
    return finish(args, found, waited=True, shown_hops=shown_hops)
