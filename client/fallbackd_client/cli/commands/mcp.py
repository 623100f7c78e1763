"""`mcp`: serve agents the daemon's tools on standard input and output, or enter that into them."""

from __future__ import annotations

import argparse
import os
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, note
from fallbackd_client.cli.parsing import add_actions
from fallbackd_client.cli.setup.changes import add_change_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client

AGENTS = ("claude", "codex", "opencode", "gemini", "cursor", "zed")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-health",
        action="store_true",
        help="let the agent clear, pause and resume backends too",
    )
    lines = {"install": "add the server to the settings of an agent; shows the change first"}
    install = add_actions(parser, lines, required=False)["install"]
    install.add_argument("agent", choices=AGENTS, help="the agent")
    add_change_arguments(install)
    install.add_argument("--undo", action="store_true", help="remove it again")


def run(args: argparse.Namespace, client: Client) -> int:
    if args.action == "install":
        return _install(args)
    from fallbackd_client.mcp.protocol import LineReader, LineWriter, take_over
    from fallbackd_client.mcp.server import Server
    from fallbackd_client.mcp.tools import Offer

    if os.devnull in (sys.stdin.name, sys.stdout.name):  # `main` has opened what was closed
        raise UsageError("standard input and standard output have to be open")
    if sys.stdin.isatty():
        note(
            "an MCP server, for agents to start; add it to one: fallbackd-client mcp install AGENT"
        )
    reading, writing = take_over()
    offer = Offer(may_change_health=args.allow_health)
    Server(LineReader(reading), LineWriter(writing, reading), path=args.socket, offer=offer).serve()
    return exits.OK


def _install(args: argparse.Namespace) -> int:
    from fallbackd_client.cli.setup.changes import change
    from fallbackd_client.mcp.install import CLIENTS
    from fallbackd_client.settings.editing import own_command

    command = own_command(args.socket, "mcp", *(["--allow-health"] if args.allow_health else []))
    parts = CLIENTS[args.agent].parts(os.environ, command)
    shown = f"fallbackd-client mcp install {args.agent} --print"
    return change(args, args.agent, parts, undo=args.undo, shown_by=shown)
