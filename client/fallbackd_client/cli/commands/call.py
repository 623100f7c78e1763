"""`call`: any method with JSON."""

from __future__ import annotations

import argparse
import json
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD")
    parser.add_argument("params", metavar="JSON", nargs="?", help="an object; `-`: standard input")


def run(args: argparse.Namespace, client: Client) -> int:
    """The result is JSON in any case."""
    emit_json(client.call(args.method, _params(args.params)))
    return exits.OK


def _params(argument: str | None) -> dict[str, Json]:
    if argument is None:
        return {}
    text = sys.stdin.read() if argument == "-" else argument
    try:
        params = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the parameters are no JSON: {error}") from error
    if not isinstance(params, dict):
        raise UsageError("the parameters have to be a JSON object")
    return params
