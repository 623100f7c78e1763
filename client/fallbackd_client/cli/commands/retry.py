"""`retry`: delegate the prompt of a delegation once more, wait for the answer, print it."""

from __future__ import annotations

import argparse
import os

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.ending import begun, see_through
from fallbackd_client.cli.parsing import wait_for_flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    wait_for_flag(parser)


def run(args: argparse.Namespace, client: Client) -> int:
    params = {"delegation": args.delegation, "request_id": os.urandom(16).hex()}
    found = begun(client, "delegation.retry", params)
    return exits.INTERRUPTED if found is None else see_through(args, client, found)
