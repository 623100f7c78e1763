"""`suggest`: a backend for a task."""

from __future__ import annotations

import argparse
import os

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, duration, one_line, show, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


SIZES = ("tiny", "small", "medium", "large", "xlarge")
COMPLEXITIES = ("low", "medium", "high", "extreme")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("goal", metavar="GOAL", nargs="?", default="", help="the task")
    parser.add_argument("--size", choices=SIZES, help="size of the project")
    parser.add_argument(
        "--scope", metavar="W", help="code, refactor, security, research, analysis, build, test"
    )
    parser.add_argument("--complexity", choices=COMPLEXITIES, help="how hard the task is")
    parser.add_argument("--root", metavar="D", help="directory of the project")


def run(args: argparse.Namespace, client: Client) -> int:
    given = {
        "goal": args.goal,
        "project_size": args.size,
        "scope": args.scope,
        "complexity": args.complexity,
        "project_root": None if args.root is None else os.path.abspath(args.root),
    }
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("suggest", params)
    show(args, found, suggest_view)
    return exits.OK if found.get("suggestion") else exits.TRY_LATER


def _scores(scores: dict[str, Json], caps: dict[str, Json], style: Style) -> str:
    rows = [[backend, f"{one:g}", _cap(caps.get(backend))] for backend, one in scores.items()]
    return table(["BACKEND", "SCORE", "USED"], rows, style, coloured=3)


def suggest_view(found: dict[str, Json], style: Style) -> str:
    name = found.get("suggestion")
    reason = one_line(found.get("reason") or "")
    if name:
        lines = [style.paint(one_line(name), "bold") + (f": {reason}" if reason else "")]
    else:
        lines = [reason or "No backend is available."]
    if found.get("eta_s") is not None:
        lines.append(f"takes about {found.get('eta_display') or duration(found['eta_s'])}")
    if found.get("scores"):
        lines.append(_scores(found["scores"], found.get("rate_limits") or {}, style))
    if found.get("unhealthy"):
        lines.append("left out: " + ", ".join(one_line(name) for name in found["unhealthy"]))
    return "\n".join(lines)


def _cap(cap: Json) -> str:
    if not isinstance(cap, dict):
        return ""
    limit = "" if cap.get("cap") is None else f" of {cap['cap']:g}"
    window = "" if cap.get("window_s") is None else f" in {duration(cap['window_s'])}"
    return f"{cap.get('used', 0):g}{limit} {cap.get('unit') or ''}{window}"
