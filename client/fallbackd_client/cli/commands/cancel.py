"""`cancel`: stop a delegation; returns when it is proven stopped."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("delegation", metavar="DELEGATION", nargs="?", help=ids.HELP)
    one.add_argument("--request-id", metavar="ID", help="the idempotency key that began it")
    one.add_argument("--session", metavar="NAME", help="everything unfinished in this session")


def run(args: argparse.Namespace, client: Client) -> int:
    """Done also where it had ended before: what was asked for is so."""
    named = {name: getattr(args, name) for name in ("delegation", "request_id", "session")}
    found = client.call(
        "delegation.cancel", {name: value for name, value in named.items() if value is not None}
    )
    show(args, found, lambda one, style: f"{one.get('delegation')} {one.get('state')}")
    return exits.OK
