"""`usage`: what was used, by backend and period."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import show
from fallbackd_client.cli.parsing import since_at
from fallbackd_client.cli.views import usage_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--backend", metavar="B", help="only of this backend")
    parser.add_argument(
        "--since",
        type=since_at,
        metavar="DURATION",
        help="of this time (2h, 3d), or since an instant (Unix seconds)",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    given = {"session": args.session, "backend": args.backend, "since_at": args.since}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("usage", params)
    show(args, found, lambda all_, style: usage_table(all_.get("usage") or [], style))
    return exits.OK
