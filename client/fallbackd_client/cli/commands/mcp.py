"""`mcp`: serve the tools of the daemon to an agent, on standard input and output."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-health",
        action="store_true",
        help="let the agent clear, pause and resume backends too",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    from fallbackd_client.calls import inside_of
    from fallbackd_client.mcp.pipe import LineReader, LineWriter, take_over
    from fallbackd_client.mcp.server import Server
    from fallbackd_client.mcp.tools import Offer

    reading, writing = take_over()
    offer = Offer(may_change_health=args.allow_health, inside=inside_of())
    Server(LineReader(reading), LineWriter(writing), path=args.socket, offer=offer).serve()
    return exits.OK
