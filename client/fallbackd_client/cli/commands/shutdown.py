"""`shutdown`: drain, then stop the daemon."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, show
from fallbackd_client.cli.waits_for import waits_for_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-work",
        action="store_true",
        help="cancel running work instead of waiting for it",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    params: dict[str, Json] = {"stop_work": True} if args.stop_work else {}
    show(args, client.call("daemon.shutdown", params), _view)
    return exits.OK


def _view(found: dict[str, Json], style: Style) -> str:
    return waits_for_view(
        found,
        style,
        nothing="shutting down; nothing runs",
        then="Cancel it instead of waiting: fallbackd-client shutdown --stop-work",
    )
