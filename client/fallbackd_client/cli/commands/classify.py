"""`classify`: what an output of a backend means."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.evidence import add_evidence_arguments, evidence, failure_view
from fallbackd_client.cli.output import show
from fallbackd_client.cli.render import Style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="`-` (default): standard input"
    )
    add_evidence_arguments(parser)
    parser.add_argument("--kind", metavar="K", help="profile or API kind: codex, openai-http, …")
    parser.add_argument("--backend", metavar="B", help="a configured backend")
    parser.add_argument("--timezone", metavar="Z", help="for times without a zone")
    parser.add_argument("--now", type=float, metavar="T", help="read times from here (Unix)")


def run(args: argparse.Namespace, client: Client) -> int:
    given = {
        "evidence": evidence(args, args.file),
        "kind": args.kind,
        "backend": args.backend,
        "timezone": args.timezone,
        "now_at": args.now,
    }
    params = {name: value for name, value in given.items() if value is not None}
    show(args, client.call("classify", params), _view)
    return exits.OK


def _view(found: Json, style: Style) -> str:
    return failure_view(found, style) if isinstance(found, dict) else "no failure"
