"""`questions`: the choices that wait for a person."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import show
from fallbackd_client.cli.views import questions_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--all", action="store_true", help="those too that were answered")


def run(args: argparse.Namespace, client: Client) -> int:
    given = {"session": args.session, "closed": args.all or None}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("question.list", params)
    show(args, found, lambda all_, style: questions_view(all_.get("questions") or [], style))
    return exits.OK
