"""`show`: a delegation as it is now."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import show
from fallbackd_client.cli.views import delegation_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)


def run(args: argparse.Namespace, client: Client) -> int:
    found = client.call("delegation.get", {"delegation": args.delegation})
    show(args, found, delegation_view)
    return exits.OK
