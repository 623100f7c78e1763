"""`wait`: wait for the end of a delegation, print its answer."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.ending import finish, wait_for
from fallbackd_client.cli.output import emit_json, note
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="wait no longer than that; the work goes on"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    found = client.call("delegation.get", {"delegation": args.delegation})
    if found.get("state") not in END_STATES:
        found, over = wait_for(client, found, args.timeout)
        if over:
            if args.json:
                emit_json(found)
            note(f"the wait is over, {args.delegation} goes on")
            return exits.TRY_LATER
    return finish(args, found, waited=True)
