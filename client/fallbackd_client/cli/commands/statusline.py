"""`statusline`: for Claude Code, which runs it beside each of its answers."""

from __future__ import annotations

import argparse
import json
import sys

from fallbackd_client.cli import exits
from fallbackd_client.interactive.hook import MAX_BYTES, Own, joined, line, parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--then", metavar="CMD", help="run this status line command too, and append to its line"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    given = sys.stdin.buffer.read(MAX_BYTES)
    own = Own(args.then, given) if args.then else None
    ours = line(parsed(given), args.socket)
    text = joined("" if own is None else own.said(), ours)
    if args.json:
        text = json.dumps({"line": text})
    print(text, flush=True)
    return exits.OK
