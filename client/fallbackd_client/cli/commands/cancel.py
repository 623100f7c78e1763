"""`cancel`: stop a delegation; returns when it is proven stopped."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)


def run(args: argparse.Namespace, client: Client) -> int:
    """Done also where it had ended before: what was asked for is so."""
    found = client.call("delegation.cancel", {"delegation": args.delegation})
    show(args, found, lambda one, style: f"{one.get('delegation')} {one.get('state')}")
    return exits.OK
