"""`status`: the daemon, its backends and its work."""

from __future__ import annotations

import argparse
import sys
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.ids import shortened
from fallbackd_client.cli.output import (
    Style,
    clean,
    duration,
    emit_json,
    is_terminal,
    one_line,
    show,
    size_of,
    style_of,
    table,
)
from fallbackd_client.cli.views import (
    cause,
    health_table,
    question_view,
    session_view,
    sessions_table,
    usage_table,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_REDRAW_S = 1.0
_SESSIONS_SHOWN = 20
_RECENT_SHOWN = 5
_WARNINGS_SHOWN = 2
_PLACES = ("state_dir", "store", "connections", "confinement")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="show this session instead of all")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show scopes, usage and the readiness of each backend",
    )
    parser.add_argument("--watch", action="store_true", help="refresh every second")
    parser.add_argument("--wide", action="store_true", help="do not cut lines at the terminal")


def run(args: argparse.Namespace, client: Client) -> int:
    params: dict[str, Json] = {}
    if args.session:
        params["session"] = args.session
    if args.verbose:
        params["verbose"] = True
    if args.watch:
        return _watch(args, client, params)
    found = client.call("status", params) if args.json else _ask(client, params)
    show(args, found, _view(args))
    return exits.OK


def status_view(found: dict[str, Json], style: Style, *, verbose: bool = False) -> str:
    daemon = found.get("daemon") or {}
    lines = [_head(daemon, style, verbose=verbose)]
    lines += _trouble_lines(daemon, style, verbose=verbose)
    lines += _config_lines(daemon, style, verbose=verbose)
    if isinstance(found.get("share"), dict):
        from fallbackd_client.cli.commands.share import sharing_line  # most machines share nothing

        lines.append(sharing_line(found["share"], style))
    lines += ["", *_health_lines(found.get("health") or {}, style, verbose=verbose)]
    if isinstance(found.get("readiness"), dict):
        lines += ["", readiness_view(found["readiness"], style)]
    lines += _resident_lines(found)
    lines += _work_lines(found, style)
    for question in found.get("questions") or []:
        lines += ["", question_view(question)]
    lines += _session_lines(found, style, verbose=verbose)
    if found.get("usage"):
        lines += ["", usage_table(found["usage"], style)]
    return "\n".join(lines)


def _resident_lines(found: dict[str, Json]) -> list[str]:
    """Programs that a prompt needs not start, and what they hold."""
    lines = []
    for one in found.get("residents") or []:
        place, held = one_line(one.get("cwd") or ""), one.get("memory_bytes")
        words = [f"{one_line(one.get('program', '?'))} {one_line(one.get('state', '?'))}"]
        words += [f"in {place}"] if place else []
        words += [f"({held // 2**20} MiB)"] if held else []
        lines.append(" ".join(words))
    return ["", *lines] if lines else []


def _head(daemon: dict[str, Json], style: Style, *, verbose: bool) -> str:
    words = [
        style.paint(f"fallbackd {daemon.get('version', '?')}", "bold"),
        f"pid {daemon.get('pid', '?')}",
        f"up {duration(daemon.get('uptime_s') or 0)}",
    ]
    if daemon.get("state") not in (None, "running"):
        words.insert(1, style.paint(str(daemon["state"]), "yellow"))
    socket = str(daemon.get("socket") or "")
    if style.width is None or verbose or len(" · ".join([*words, socket])) <= style.width:
        words.append(socket)
    return " · ".join(word for word in words if word)


def _session_lines(found: dict[str, Json], style: Style, *, verbose: bool) -> list[str]:
    if isinstance(found.get("session"), dict):
        return ["", session_view(found["session"], style)]
    sessions = found.get("sessions")
    if not sessions or not verbose:
        return []
    lines = ["", sessions_table(sessions[:_SESSIONS_SHOWN], style)]
    if (more := len(sessions) - _SESSIONS_SHOWN) > 0:
        lines.append(f"… and {more} more: `fallbackd-client sessions`")
    return lines


def _trouble_lines(daemon: dict[str, Json], style: Style, *, verbose: bool) -> list[str]:
    lines = []
    store = one_line(daemon.get("store") or "")
    if not verbose and (":" in store or ";" in store):  # more than its kind: what is wrong with it
        lines.append(style.paint(f"store {store}", "yellow"))
    for trouble in daemon.get("troubles") or []:
        words = one_line(trouble.get("message", ""))
        if trouble.get("stops_work"):
            words += "; no new work is accepted"
        lines.append(style.paint(words, "red" if trouble.get("stops_work") else "yellow"))
        if trouble.get("fix"):
            lines.append(f"  $ {one_line(trouble['fix'])}")
    return lines


_HANDED_BACK = "in-session"
"""Stands in chains for handing the work back to the caller, and is no program or service."""
_NOBODY_HAS = "hermes-api"
"""A profile for a server of one's own, without which nothing is missing."""
_UNSUPPORTED = "not supported in this version"
_ABSENT = {"not_installed": "not installed", "not_configured": "not set up"}


def _health_lines(health: dict[str, Json], style: Style, *, verbose: bool) -> list[str]:
    """Backends that are not there need no line each: nothing is wrong with them."""
    if verbose:
        return [health_table(health, style, verbose=True)]
    absent: dict[str, list[str]] = {}
    shown = {}
    for backend, entry in health.items():
        reason = str(entry.get("reason"))
        words = _UNSUPPORTED if entry.get("detail") == "version" else _ABSENT.get(reason)
        if words is not None and entry.get("state") == "broken":
            absent.setdefault(words, []).append(one_line(backend))
        elif backend != _HANDED_BACK or entry.get("state") != "healthy":
            shown[backend] = entry
    lines = [health_table(shown, style)] if shown or not absent else []
    for words, names in absent.items():
        lines.append(style.paint(f"{words}: {', '.join(names)}", "dim"))
        if words == _ABSENT["not_configured"] and names != [_NOBODY_HAS]:
            lines.append(style.paint("  $ fallbackd-client doctor  # says what is missing", "dim"))
    return lines


_MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "dim")}


def readiness_view(found: dict[str, Json], style: Style) -> str:
    """Show the state of each backend as far as it is known without spending anything."""
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
    warnings = _problem_lines("warning", daemon.get("config_warnings"))
    lines = [
        style.paint(one, "red") for one in _problem_lines("error", daemon.get("config_errors"))
    ]
    few = len(warnings) if verbose else _WARNINGS_SHOWN
    lines += [style.paint(one, "yellow") for one in warnings[:few]]
    if len(warnings) > few:
        words = f"{len(warnings)} configuration warnings in all; see them"
        lines.append(style.paint(f"{words} with: fallbackd-client status --verbose", "yellow"))
    if lines or verbose:
        lines.insert(0, f"configuration {daemon.get('config_path') or '(none: built-in profiles)'}")
    if verbose:
        known = [name for name in _PLACES if daemon.get(name) is not None]
        lines += [f"{name.replace('_', ' ')} {daemon[name]}" for name in known]
    return lines


def _problem_lines(kind: str, problems: Sequence[dict[str, Json]] | None) -> list[str]:
    return [
        f"configuration {kind}: {one.get('path') or 'file'}: {one_line(one.get('message', ''))}"
        for one in problems or ()
    ]


def _work_lines(found: dict[str, Json], style: Style) -> list[str]:
    counts = found.get("delegations") or {}
    active = counts.get("active") or []
    ended = [one for one in found.get("recent") or [] if one.get("ended_at") is not None]
    shown = [*active, *ended[:_RECENT_SHOWN]]
    short = shortened([str(one.get("delegation", "?")) for one in shown], is_part=True)
    named = list(zip(short, shown, strict=True))
    lines = ["", "delegations: " + (", ".join(_count_words(counts)) or "none")]
    if active:
        at = time.time()
        rows = [[name, *_running_cells(one, at)] for name, one in named[: len(active)]]
        headers = ["ID", "STATE", "BACKEND", "SESSION", "SINCE", "PHASE"]
        lines.append(table(headers, rows, style))
    return lines + _recent_lines(named[len(active) :], style)


def _count_words(counts: dict[str, Json]) -> list[str]:
    return [
        f"{counts[name]} {name.removesuffix('_total').replace('_', ' ')}"
        for name in ("running", "waiting", "queued", "awaiting_answer", "finished_total")
        if isinstance(counts.get(name), int) and (counts[name] or name != "awaiting_answer")
    ]


def _running_cells(one: dict[str, Json], at: float) -> list[object]:
    return [
        one.get("state", "?"),
        one.get("active") or one.get("requested"),
        one.get("session"),
        None if one.get("created_at") is None else duration(at - one["created_at"]),
        one.get("phase"),
    ]


def _recent_lines(ended: list[tuple[str, Json]], style: Style) -> list[str]:
    at = time.time()
    rows = [
        [
            name,
            one.get("state", "?"),
            one.get("served_by") or one.get("active") or "",
            f"{duration(at - one['ended_at'])} ago",
            cause(one.get("fallback_reason") or one.get("message") or ""),
        ]
        for name, one in ended
    ]
    if not rows:
        return []
    return ["", table(["LAST", "STATE", "BACKEND", "ENDED", "WHY"], rows, style)]


def _watch(args: argparse.Namespace, client: Client, params: dict[str, Json]) -> int:
    """Show until interrupted, in place on a terminal, else one rendering after the other."""
    in_place = is_terminal(sys.stdout) and not args.json
    if in_place:
        sys.stdout.write("\x1b[?25l\x1b[2J")  # no cursor, an empty screen
    try:
        while True:
            found = _ask(client, params)
            if in_place:
                _redraw(args, found)
            elif args.json:
                emit_json(found)
            else:
                show(args, found, _view(args))
                print(flush=True)
            time.sleep(_REDRAW_S)
    finally:
        if in_place:
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()


def _redraw(args: argparse.Namespace, found: dict[str, Json]) -> None:
    """Over what is on the screen, and no more than fits on it: nothing scrolls."""
    _, height = size_of(sys.stdout)
    text = _view(args)(clean(found), style_of(sys.stdout, wide=args.wide))
    lines = text.split("\n")
    if len(lines) >= height:
        lines = [*lines[: max(1, height - 2)], f"… {len(lines) - height + 2} more lines"]
    # Without wrapping (?7l) a line that is too long is cut by the terminal itself.
    # A line is erased before it is written: behind its last column that would erase a character.
    body = "".join(f"\x1b[2K{line}\n" for line in lines)
    sys.stdout.write(f"\x1b[?7l\x1b[H{body}\x1b[J\x1b[?7h")
    sys.stdout.flush()


def _view(args: argparse.Namespace) -> Callable[[Json, Style], str]:
    return lambda found, style: status_view(found, style, verbose=args.verbose)


def _ask(client: Client, params: dict[str, Json]) -> dict[str, Json]:
    """The status, and beside it what ended last."""
    found: dict[str, Json] = client.call("status", params)
    wanted: dict[str, Json] = {"limit": _RECENT_SHOWN, "ended": True, "brief": True}
    if params.get("session"):
        wanted["session"] = params["session"]
    return {**found, "recent": client.call("delegation.list", wanted).get("lines") or []}
