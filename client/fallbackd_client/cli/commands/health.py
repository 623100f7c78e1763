"""`health`: list, mark, clear, pause or resume backends."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.durations import duration_s
from fallbackd_client.cli.output import show
from fallbackd_client.cli.render import Style
from fallbackd_client.cli.views import health_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action="list", only=None, target=None)
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    def action(name: str, help_line: str) -> argparse.ArgumentParser:
        child = actions.add_parser(name, help=help_line, description=help_line)
        child.set_defaults(action=name)
        for flag in ("--socket", "--json"):
            kind = "store_true" if flag == "--json" else "store"
            child.add_argument(flag, action=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return child

    listing = action("list", "all backends (the default)")
    listing.add_argument("--only", choices=["unhealthy"], help="leave the healthy ones out")
    target_help = "a backend, or a scope such as quota:GROUP"
    action("get", "one backend").add_argument("target", metavar="TARGET", help=target_help)
    mark = action("mark", "take a backend out of use")
    mark.add_argument("target", metavar="TARGET", help=target_help)
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
    clear = action("clear", "forget what is held against a backend, or against all")
    clear.add_argument("target", metavar="TARGET", nargs="?", help=target_help)
    pause = action("pause", "keep a backend out of use until it is resumed")
    pause.add_argument("target", metavar="TARGET", help=target_help)
    pause.add_argument("--note", metavar="TEXT", help="why")
    resume = action("resume", "end a pause")
    resume.add_argument("target", metavar="TARGET", help=target_help)
    for child in (mark, clear, pause, resume):
        _everywhere(child)


def _everywhere(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
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
