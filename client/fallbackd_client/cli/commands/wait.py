"""`wait`: wait for a delegation, show what it does meanwhile, print its answer."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import ids
from fallbackd_client.cli.ending import see_through
from fallbackd_client.cli.parsing import duration_s, wait_for_flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    wait_for_flag(parser)
    parser.add_argument("--timeout", dest="wait_s", type=duration_s, help=argparse.SUPPRESS)


def run(args: argparse.Namespace, client: Client) -> int:
    return see_through(args, client, client.call("delegation.get", {"delegation": args.delegation}))
