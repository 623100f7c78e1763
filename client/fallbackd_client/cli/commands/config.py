"""`config`: check, reload or show the configuration."""

from __future__ import annotations

import argparse
import json
import os

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, show
from fallbackd_client.cli.render import Style, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check", "reload", "show"])
    parser.add_argument("file", metavar="FILE", nargs="?", help="check this file instead")


def run(args: argparse.Namespace, client: Client) -> int:
    if args.file is not None and args.action != "check":
        raise UsageError(f"config {args.action} takes no FILE")
    match args.action:
        case "check":
            params = {} if args.file is None else {"path": os.path.abspath(args.file)}
            found = client.call("config.check", params)
            show(args, found, check_view)
            return exits.OK if found.get("ok") else exits.CONFIG
        case "reload":
            show(args, client.call("config.reload", {}), reload_view)
        case _:
            show(args, client.call("config.get", {}), config_view)
    return exits.OK


def check_view(found: dict[str, Json], style: Style) -> str:
    lines = [_problem("error", one) for one in found.get("errors") or []]
    lines += [_problem("warning", one) for one in found.get("warnings") or []]
    where = found.get("path") or "built-in configuration"
    if found.get("ok"):
        lines.append(style.paint(f"{where}: good", "green"))
    else:
        lines.append(style.paint(f"{where}: not usable as it is", "red"))
    return "\n".join(lines)


def reload_view(found: dict[str, Json], style: Style) -> str:
    where = found.get("path") or "built-in configuration"
    return f"{where}: {'changed' if found.get('changed') else 'no change'}"


def config_view(found: dict[str, Json], style: Style) -> str:
    lines = [f"# {found.get('path') or 'built-in configuration'}"]
    lines += ["# " + _problem("error", one) for one in found.get("errors") or []]
    lines.append(json.dumps(found.get("config") or {}, indent=2, ensure_ascii=False))
    return "\n".join(lines)


def _problem(label: str, problem: Json) -> str:
    if not isinstance(problem, dict):
        return f"{label}: {one_line(problem)}"
    where = problem.get("path") or "file"
    return f"{label}: {one_line(where)}: {one_line(problem.get('message', ''))}"
