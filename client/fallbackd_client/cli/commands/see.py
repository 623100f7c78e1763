"""`show`, `sessions`, `events`, `usage` and `limits`: look at work as it is on record."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.commands.list import directory
from fallbackd_client.cli.output import (
    Style,
    UsageError,
    clean,
    clock,
    duration,
    note,
    one_line,
    show,
    style_of,
    table,
)
from fallbackd_client.cli.parsing import since_at
from fallbackd_client.cli.views import (
    delegation_view,
    now,
    session_view,
    usage_table,
    window_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "delegation", metavar="DELEGATION", nargs="?", default=ids.LAST, help=ids.HELP
    )


def run_show(args: argparse.Namespace, client: Client) -> int:
    found = client.call("delegation.get", {"delegation": args.delegation})
    show(args, found, delegation_view)
    return exits.OK


_LOOKED_AT = 500
"""Newest delegations, for the directory and the words of a session."""
_HEADERS = ["SESSION", "USED", "BACKEND", "MOVED FROM", "RUNNING", "DIRECTORY", "LAST PROMPT"]


def register_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session", metavar="SESSION", nargs="*", help="show only this one, with its turns"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="show at most N")
    parser.add_argument("--end", action="store_true", help="forget SESSION")


def run_sessions(args: argparse.Namespace, client: Client) -> int:
    session = _session(args.session)
    if args.end:
        if session is None:
            raise UsageError("sessions --end takes the SESSION to forget")
        found = client.call("session.end", {"session": session})
        show(args, found, lambda _, __: "forgotten")
    elif session is not None:
        show(args, client.call("session.get", {"session": session}), session_view)
    else:
        params = {} if args.limit is None else {"limit": args.limit}
        found = client.call("session.list", params)
        last = {} if args.json else _last_of_each(client)
        show(
            args,
            found,
            lambda all_, style: _listed(all_.get("sessions") or [], last, style),
        )
    return exits.OK


def _last_of_each(client: Client) -> dict[str, Json]:
    """The newest delegation of each session, in short."""
    listed = client.call("delegation.list", {"brief": True, "limit": _LOOKED_AT})
    lines = listed.get("lines") or []
    return {line["session"]: line for line in reversed(lines) if line.get("session")}


def _listed(sessions: Sequence[Json], last: dict[str, Json], style: Style) -> str:
    rows = []
    for session in sessions:
        name, used_at = session.get("session", "?"), session.get("last_active_at")
        newest = last.get(name, {})
        moved = session.get("original") not in (None, session.get("current"))
        rows.append(
            [
                name,
                "" if used_at is None else f"{duration(max(0.0, now() - used_at))} ago",
                session.get("current") or "",
                session["original"] if moved else "",
                session.get("running") or "",
                directory(newest["cwd"]) if newest.get("cwd") else "",
                newest.get("prompt") or "",
            ]
        )
    return table(_HEADERS, rows, style) if rows else "no sessions"


def _session(words: list[str]) -> str | None:
    """The session that is named, with or without the word `show` in front of it."""
    named = words[1:] if words[:1] == ["show"] else words
    if len(named) > 1:
        raise UsageError("sessions takes one SESSION")
    if words and not named:
        raise UsageError("name the SESSION to show; list them with: fallbackd-client sessions")
    return named[0] if named else None


def register_events(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=int, metavar="N", help="begin after event number N")
    parser.add_argument("--kinds", metavar="K", help="kinds, separated by commas")
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--count", type=int, metavar="N", help="exit after N events")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="until interrupted (the default)"
    )


def run_events(args: argparse.Namespace, client: Client) -> int:
    kinds = None
    if args.kinds:
        kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    left = args.count
    if left is not None and left < 1:
        return exits.OK
    style = style_of(sys.stdout)
    threading.Thread(target=_end_with_reader, daemon=True).start()
    events = client.events(
        since=args.since,
        kinds=kinds,
        session=args.session,
        on_warning=lambda text: note(f"warning: {text}"),
    )
    for event in events:
        if args.json:
            print(json.dumps(event, ensure_ascii=True).replace("\x7f", "\\u007f"), flush=True)
        else:
            print(event_line(clean(event), style), flush=True)
        if left is not None:
            left -= 1
            if left == 0:
                break
    return exits.OK


def _end_with_reader() -> None:
    """Exit once a pipe has no reader: the next event, which would fail, may be far away."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except OSError:  # no descriptor of the system
        return
    poll.poll()
    os._exit(exits.FAILED)


def event_line(event: dict[str, Json], style: Style) -> str:
    """`12 14:05:09 health.moved backend=codex …`."""
    shown = dict(event)
    seq, at, kind = shown.pop("seq", None), shown.pop("at", None), shown.pop("kind", "?")
    shown.pop("subscription", None)
    words = [
        "-" if seq is None else str(seq),
        "" if at is None else clock(at, now()),
        style.paint(one_line(kind), "cyan"),
    ]
    words += [
        f"{name}={_value(name, value)}" for name, value in shown.items() if value not in (None, "")
    ]
    return " ".join(word for word in words if word)


def _value(name: str, value: Json) -> str:
    if name.endswith("_at") and isinstance(value, int | float):
        return clock(value, now()).replace(" ", "T")
    text = one_line(value if isinstance(value, str | int | float) else json.dumps(value))
    return f'"{text}"' if " " in text else text


def register_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--backend", metavar="B", help="only of this backend")
    parser.add_argument(
        "--since",
        type=since_at,
        metavar="DURATION",
        help="of this time (2h, 3d), or since an instant (Unix seconds)",
    )


def run_usage(args: argparse.Namespace, client: Client) -> int:
    given = {"session": args.session, "backend": args.backend, "since_at": args.since}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("usage", params)
    show(args, found, lambda all_, style: usage_table(all_.get("usage") or [], style))
    return exits.OK


def register_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", nargs="?", metavar="B", help="only of this backend")


def run_limits(args: argparse.Namespace, client: Client) -> int:
    params = {"action": "list"}
    if args.backend is not None:
        params = {"action": "get", "target": args.backend}
    health = client.call("health", params).get("health") or {}
    found = {name: one["limits"] for name, one in health.items() if one.get("limits")}
    show(args, {"limits": found}, lambda all_, style: _limits_view(all_["limits"], style))
    return exits.OK


def _limits_view(limits: dict[str, Json], style: Style) -> str:
    at = now()
    rows = []
    for backend, figures in limits.items():
        for one in figures:
            rows.append([backend, *_limit_cells(one, at)])
            backend = ""
    if not rows:
        return "no figures yet: they come with the answers of providers and agents"
    headers = ["BACKEND", "WINDOW", "USED", "RESETS", "AT THIS PACE", "SEEN"]
    return table(headers, rows, style, coloured=0)


def _limit_cells(one: dict[str, Json], at: float) -> list[object]:
    of_what = [str(one[key]) for key in ("model", "credential") if one.get(key)]
    window = " ".join([window_of(one), *of_what])
    used = f"{one['used_percent']:.0f}%"
    if one.get("left") is not None:
        used += f" ({one['left']:.0f} of {one['limit']:.0f} {one['unit']} left)"
    age = f"{duration(one.get('age_s') or 0.0)} ago, {one.get('source', '?')}"
    return [
        window,
        used,
        "" if one.get("resets_at") is None else clock(one["resets_at"], at),
        _runway(one, at),
        age if one.get("fresh") else f"{age} (old)",
    ]


def _runway(one: dict[str, Json], at: float) -> str:
    if one.get("runs_out_at") is not None:
        return f"until {clock(one['runs_out_at'], at)}"
    return "lasts" if one.get("percent_per_hour") is not None else ""
