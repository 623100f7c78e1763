"""`completions`: what a shell needs to complete this command line."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client

SHELLS = ("bash", "fish", "zsh")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, nargs="?", help="which shell")
    # For the scripts: a word and what it is on each line, and silence where no daemon answers.
    parser.add_argument("--list", metavar="KIND", help=argparse.SUPPRESS)


def run(args: argparse.Namespace, client: Client) -> int:
    if args.list is not None:
        from fallbackd_client.cli.completions import words_of

        for word, about in words_of(args.list, args.socket):
            print(f"{word}\t{about}")
        return exits.OK
    if args.shell is None:
        raise UsageError(f"completions takes one of {', '.join(SHELLS)}")
    text = script(args.shell)
    if args.json:
        emit_json({"shell": args.shell, "script": text})
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    return exits.OK


def script(shell: str) -> str:
    from fallbackd_client.cli.completions import SCRIPTS, whole_tree

    return SCRIPTS[shell](whole_tree())
