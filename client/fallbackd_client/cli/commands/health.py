"""`health`: list, mark, clear, pause or resume backends."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, show
from fallbackd_client.cli.parsing import add_actions, duration_s
from fallbackd_client.cli.views import health_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


_ACTIONS = {
    "list": "list all backends (the default)",
    "get": "show one backend",
    "mark": "take a backend out of use",
    "clear": "forget what is held against a backend, or against all",
    "pause": "keep a backend out of use until it is resumed",
    "resume": "end a pause",
}


def register(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS, default="list")
    parser.set_defaults(only=None, target=None)
    actions["list"].add_argument("--only", choices=["unhealthy"], help="leave the healthy ones out")
    for name in ("get", "mark", "clear", "pause", "resume"):
        actions[name].add_argument(
            "target",
            metavar="TARGET",
            nargs="?" if name == "clear" else None,
            help="a backend, or a scope such as quota:GROUP",
        )
    mark = actions["mark"]
    mark.add_argument("words", metavar="REASON", nargs="?", help="a reason, or any words")
    mark.add_argument("--reason", metavar="R", help="the same")
    mark.add_argument(
        "--ttl",
        "--ttl-s",
        dest="ttl",
        type=duration_s,
        metavar="DURATION",
        help="how long; 0 clears",
    )
    mark.add_argument("--note", metavar="TEXT", help="kept with the mark")
    actions["pause"].add_argument("--note", metavar="TEXT", help="why")
    for name in ("mark", "clear", "pause", "resume"):
        actions[name].add_argument(
            "--everywhere", action="store_true", help="on all machines that share health"
        )


def run(args: argparse.Namespace, client: Client) -> int:
    given = {
        "action": args.action,
        "target": args.target,
        "only": args.only,
        "reason": getattr(args, "reason", None) or getattr(args, "words", None),
        "ttl_s": getattr(args, "ttl", None),
        "note": getattr(args, "note", None),
        "everywhere": getattr(args, "everywhere", False) or None,
    }
    params = {name: value for name, value in given.items() if value is not None}
    show(args, client.call("health", params), health_view)
    return exits.OK


def health_view(found: dict[str, Json], style: Style) -> str:
    lines = []
    if "cleared" in found:
        cleared = found["cleared"]
        lines.append("cleared: " + ", ".join(cleared) if cleared else "nothing to clear")
    if "health" in found:
        lines.append(health_table(found["health"], style, verbose=True))
    return "\n".join(lines)
