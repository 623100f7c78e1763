"""`answer`: answer a question; who did and when is on record."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import show
from fallbackd_client.cli.views import answered_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", metavar="QUESTION", help="its id, from `questions`")
    parser.add_argument("choice", metavar="CHOICE", help="one of its choices")
    parser.add_argument("--note", metavar="TEXT", help="kept with the answer")


def run(args: argparse.Namespace, client: Client) -> int:
    given = {"question": args.question, "choice": args.choice, "note": args.note}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("question.answer", params)
    show(args, found, lambda one, style: answered_line(one))
    return exits.OK
