"""`mcp`: serve agents the daemon's tools on standard input and output, or enter that into them."""

from __future__ import annotations

import argparse
import os
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json, note
from fallbackd_client.cli.render import safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.install.installing import Edit

AGENTS = ("claude", "codex", "opencode", "gemini", "cursor", "zed")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-health",
        action="store_true",
        help="let the agent clear, pause and resume backends too",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    install = actions.add_parser(
        "install",
        help="add the server to the settings of an agent",
        description="Add the server to the settings of an agent; shows the change first.",
        allow_abbrev=False,
        formatter_class=parser.formatter_class,  # its own would load `shutil`
    )
    install.add_argument("agent", choices=AGENTS, help="the agent")
    install.add_argument(
        "--print", dest="only_print", action="store_true", help="print what to add, write nothing"
    )
    install.add_argument("--undo", action="store_true", help="remove it again")
    for flag, kind in (("--socket", "store"), ("--json", "store_true")):
        install.add_argument(flag, action=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    install.add_argument("--yes", action="store_true", help="write without asking")


def run(args: argparse.Namespace, client: Client) -> int:
    if args.action == "install":
        return _install(args)
    from fallbackd_client.calls import inside_of
    from fallbackd_client.mcp.pipe import LineReader, LineWriter, take_over
    from fallbackd_client.mcp.server import Server
    from fallbackd_client.mcp.tools import Offer

    if sys.stdin is not None and sys.stdin.isatty():
        note(
            "an MCP server, for agents to start; add it to one: fallbackd-client mcp install AGENT"
        )
    try:
        reading, writing = take_over()
    except OSError as error:
        raise UsageError("standard input and standard output have to be open") from error
    offer = Offer(may_change_health=args.allow_health, inside=inside_of())
    Server(LineReader(reading), LineWriter(writing, reading), path=args.socket, offer=offer).serve()
    return exits.OK


def _install(args: argparse.Namespace) -> int:
    from fallbackd_client.mcp.install.clients import CLIENTS
    from fallbackd_client.mcp.install.installing import edits, own_command, write
    from fallbackd_client.mcp.install.jsonc import Unreadable

    agent = CLIENTS[args.agent]
    command = own_command(args.socket)
    if args.allow_health:
        command.arguments.append("--allow-health")
    parts = agent.parts(os.environ, command)
    if args.only_print:
        for part in parts:
            print(f"{safe(part.path)}:\n{part.snippet}", flush=True)
        return exits.OK
    try:
        found = edits(parts, undo=args.undo)
        if args.json:
            emit_json({"edits": [one.document() for one in found], "written": args.yes})
        elif not found:
            note(f"nothing to change: {args.agent} {'has no' if args.undo else 'has the'} entry")
        else:
            print("\n".join(safe(one.diff()) for one in found), flush=True)
        if not found or not _is_confirmed(args, found):
            return exits.OK if not found or args.json else exits.FAILED
        for one in found:
            write(one)
    except (Unreadable, OSError) as error:
        what = f"fallbackd-client mcp install {args.agent} --print"
        raise UsageError(f"{error}; see what to add with: {what}") from error
    note(f"{'removed from' if args.undo else 'added to'} {args.agent}; restart it to take effect")
    return exits.OK


def _is_confirmed(args: argparse.Namespace, found: list[Edit]) -> bool:
    if args.yes:
        return True
    if args.json or not sys.stdin.isatty():
        note("nothing was written; add --yes to write it")
        return False
    files = " and ".join(one.path for one in found)
    print(f"Write {safe(files)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
