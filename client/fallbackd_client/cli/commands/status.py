"""`status`: the daemon, its backends and its work."""

from __future__ import annotations

import argparse
import sys
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import emit_json, is_terminal, show
from fallbackd_client.cli.render import Style, duration, one_line, table
from fallbackd_client.cli.views import (
    health_table,
    question_view,
    session_view,
    sessions_table,
    usage_table,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_REDRAW_S = 1.0
_SESSIONS_SHOWN = 20


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="show this session instead of all")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show scopes, usage and the readiness of each backend",
    )
    parser.add_argument("--watch", action="store_true", help="refresh every second")


def run(args: argparse.Namespace, client: Client) -> int:
    params: dict[str, Json] = {}
    if args.session:
        params["session"] = args.session
    if args.verbose:
        params["verbose"] = True
    if args.watch:
        return _watch(args, client, params)
    answer = client.call("status", params)
    show(args, answer, lambda found, style: status_view(found, style, verbose=args.verbose))
    return exits.OK


def status_view(found: dict[str, Json], style: Style, *, verbose: bool = False) -> str:
    daemon = found.get("daemon") or {}
    words = [
        style.paint(f"fallbackd {daemon.get('version', '?')}", "bold"),
        f"pid {daemon.get('pid', '?')}",
        f"up {duration(daemon.get('uptime_s') or 0)}",
        str(daemon.get("socket") or ""),
    ]
    if daemon.get("state") not in (None, "running"):
        words.insert(1, style.paint(str(daemon["state"]), "yellow"))
    lines = [" · ".join(word for word in words if word)]
    lines += _trouble_lines(daemon, style, verbose=verbose)
    lines += _config_lines(daemon, style, verbose=verbose)
    lines += ["", health_table(found.get("health") or {}, style, verbose=verbose)]
    if isinstance(found.get("readiness"), dict):
        lines += ["", readiness_view(found["readiness"], style)]
    lines += _delegation_lines(found.get("delegations") or {}, style)
    for question in found.get("questions") or []:
        lines += ["", question_view(question)]
    if isinstance(found.get("session"), dict):
        lines += ["", session_view(found["session"], style)]
    elif found.get("sessions"):
        sessions = found["sessions"]
        lines += ["", sessions_table(sessions[:_SESSIONS_SHOWN], style)]
        if len(sessions) > _SESSIONS_SHOWN:
            lines.append(
                f"… and {len(sessions) - _SESSIONS_SHOWN} more: `fallbackd-client sessions`"
            )
    if found.get("usage"):
        lines += ["", usage_table(found["usage"], style)]
    return "\n".join(lines)


def _trouble_lines(daemon: dict[str, Json], style: Style, *, verbose: bool) -> list[str]:
    lines = []
    store = one_line(daemon.get("store") or "")
    if not verbose and (":" in store or ";" in store):  # more than its kind: what is wrong with it
        lines.append(style.paint(f"store {store}", "yellow"))
    for trouble in daemon.get("troubles") or []:
        words = one_line(trouble.get("message", ""))
        if trouble.get("stops_work"):
            words += "; no new work is taken"
        lines.append(style.paint(words, "red" if trouble.get("stops_work") else "yellow"))
        if trouble.get("mend"):
            lines.append(f"  $ {one_line(trouble['mend'])}")
    return lines


_MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "dim")}


def readiness_view(found: dict[str, Json], style: Style) -> str:
    """What is known of each backend without spending anything."""
    rows = []
    for name, one in found.items():
        for rung in one.get("rungs") or []:
            word, colour = _MARKS[rung.get("ok")]
            rows.append(
                [name, rung.get("name", ""), style.paint(word, colour), one_line(rung["detail"])]
            )
            name = ""
    return table(["BACKEND", "LOOK", "OK", "FOUND"], rows, style)


def _config_lines(daemon: dict[str, Json], style: Style, *, verbose: bool) -> list[str]:
    lines = []
    for problem in daemon.get("config_errors") or []:
        where = problem.get("path") or "file"
        text = f"configuration error: {where}: {one_line(problem.get('message', ''))}"
        lines.append(style.paint(text, "red"))
    for problem in daemon.get("config_warnings") or [] if verbose else []:
        where = problem.get("path") or "file"
        lines.append(f"configuration warning: {where}: {one_line(problem.get('message', ''))}")
    warned = len(daemon.get("config_warnings") or [])
    if warned and not verbose:
        word = "warning" if warned == 1 else "warnings"
        text = f"{warned} configuration {word}; see them with: fallbackd-client status --verbose"
        lines.append(style.paint(text, "yellow"))
    if lines or verbose:
        lines.insert(0, f"configuration {daemon.get('config_path') or '(none: built-in profiles)'}")
    if verbose:
        names = ("state_dir", "store", "connections")
        known = [name for name in names if daemon.get(name) is not None]
        lines += [f"{name.replace('_', ' ')} {daemon[name]}" for name in known]
    return lines


def _delegation_lines(counts: dict[str, Json], style: Style) -> list[str]:
    words = [
        f"{counts[name]} {name.removesuffix('_total').replace('_', ' ')}"
        for name in ("running", "waiting", "queued", "awaiting_answer", "finished_total")
        if isinstance(counts.get(name), int) and (counts[name] or name != "awaiting_answer")
    ]
    lines = ["", "delegations: " + (", ".join(words) or "none")]
    active = counts.get("active") or []
    if active:
        at = time.time()
        rows = [
            [
                one.get("delegation", "?"),
                one.get("state", "?"),
                one.get("active") or one.get("requested") or "",
                one.get("session") or "",
                duration(at - one["created_at"]) if one.get("created_at") is not None else "",
                one.get("phase") or "",
            ]
            for one in active
        ]
        headers = ["DELEGATION", "STATE", "BACKEND", "SESSION", "SINCE", "PHASE"]
        lines.append(table(headers, rows, style))
    return lines


def _watch(args: argparse.Namespace, client: Client, params: dict[str, Json]) -> int:
    """Until interrupted. In place on a terminal, else one rendering after the other."""
    if is_terminal(sys.stdout) and not args.json:
        try:
            return _watch_live(args, client, params)
        except ImportError:  # rich is an extra: without it the text scrolls
            pass
    while True:
        answer = client.call("status", params)
        if args.json:
            emit_json(answer)
        else:
            show(args, answer, lambda found, style: status_view(found, style, verbose=args.verbose))
            print(flush=True)
        time.sleep(_REDRAW_S)


def _watch_live(args: argparse.Namespace, client: Client, params: dict[str, Json]) -> int:
    from rich.live import Live  # 40 ms to load: only here
    from rich.text import Text

    from fallbackd_client.cli.output import style_of
    from fallbackd_client.cli.render import clean

    style = style_of(sys.stdout)
    with Live(auto_refresh=False) as live:
        while True:
            answer = clean(client.call("status", params))
            shown = status_view(answer, style, verbose=args.verbose)
            text = Text.from_ansi(shown, no_wrap=True, overflow="ellipsis")
            live.update(text, refresh=True)
            time.sleep(_REDRAW_S)
