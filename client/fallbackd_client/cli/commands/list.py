"""`list`: delegations, running ones first, then the last ended."""

from __future__ import annotations

import argparse
import os
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.ids import shortened
from fallbackd_client.cli.output import (
    NARROW,
    Style,
    UsageError,
    clock,
    display_width,
    duration,
    one_line,
    show,
    table,
    wrapped,
)
from fallbackd_client.cli.parsing import duration_s
from fallbackd_client.wire.codes import END_STATES, STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_SHOWN = 20
_PAGE = 500


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help=f"show all of them, not only the last {_SHOWN} ended")
    states = sorted(STATES)
    add(
        "--state",
        choices=states,
        metavar="STATE",
        help=f"only {', '.join(states[:-1])} or {states[-1]}",
    )
    add("--backend", metavar="B", help="only those that this backend ran last")
    add("--cwd", metavar="D", help="only in this directory or below it")
    add("--since", type=duration_s, metavar="DURATION", help="only of this time (2h, 3d)")
    add("--session", metavar="S", help="only of this session")
    add("--wide", action="store_true", help="do not cut lines at the terminal")


def run(args: argparse.Namespace, client: Client) -> int:
    given: dict[str, Json] = {
        "brief": True,
        "state": args.state,
        "backend": args.backend,
        "cwd": None if args.cwd is None else _real(args.cwd),
        "session": args.session,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    lines: list[Json] = []
    if args.state not in END_STATES:
        lines += _listed(client, {**wanted, "ended": False}, None)
    is_more = False
    if args.state is None or args.state in END_STATES:
        ended, is_more = _ended(args, client, wanted)
        lines += ended
    is_part = len(wanted) > 1 or args.since is not None
    calls = 0 if is_part or args.json else _gateway_calls(client)
    show(
        args,
        {"delegations": lines, "more": is_more},
        lambda shown, style: list_view(shown, style, is_part=is_part, calls=calls),
    )
    return exits.OK


def _gateway_calls(client: Client) -> int:
    """Count the calls of the gateway, which are no delegations."""
    return int(client.call("exchange.list", {"limit": 1}).get("known") or 0)


def _real(path: str) -> str:
    if not os.path.isdir(path):
        raise UsageError(f"--cwd: {path} is not a directory")
    return os.path.realpath(path)


def _listed(client: Client, wanted: dict[str, Json], most: int | None) -> list[Json]:
    """List at most so many; None: all."""
    lines: list[Json] = []
    params = wanted
    while most is None or len(lines) < most:
        left = _PAGE if most is None else min(_PAGE, most - len(lines))
        answer = client.call("delegation.list", {**params, "limit": left})
        lines += answer.get("lines") or []
        if answer.get("next_cursor") is None:
            break
        params = {**wanted, "cursor": answer["next_cursor"]}
    return lines


def _ended(
    args: argparse.Namespace, client: Client, wanted: dict[str, Json]
) -> tuple[list[Json], bool]:
    """Return those to show, and whether there are more."""
    params = {**wanted, "ended": True}
    if args.since is not None:
        params["since_at"] = time.time() - args.since
    if args.all or args.since:
        return _listed(client, params, None), False
    found = _listed(client, params, _SHOWN + 1)
    return found[:_SHOWN], len(found) > _SHOWN


def _columns(style: Style, at: float) -> dict[str, Callable[[dict[str, Json]], str]]:
    room = None if style.width is None else style.width // 4
    columns: dict[str, Callable[[dict[str, Json]], str]] = {
        "STATE": lambda one: str(one.get("state", "?")),
        "AGE": lambda one: _age(one, at),
        "BACKEND": lambda one: one.get("served_by") or one.get("active") or "",
        "DIRECTORY": lambda one: directory(one.get("cwd"), room),
        "PROMPT": lambda one: _doing(one) or one_line(one.get("prompt") or ""),
    }
    if style.width is not None and style.width < NARROW:
        del columns["BACKEND"], columns["DIRECTORY"]
    return columns


def list_view(
    found: dict[str, Json], style: Style, *, is_part: bool = False, calls: int = 0
) -> str:
    """
    Args:
        is_part: Others are left out, so that an id that is unique here may not be.
        calls: Of the gateway, which has a list of its own.
    """
    shown = [_delegations(found, style, is_part=is_part)]
    if calls:
        words = "1 gateway call is known" if calls == 1 else f"{calls} gateway calls are known"
        hint = f"{words}: fallbackd-client gateway list"
        shown += [style.paint(part, "dim") for part in wrapped(hint, style)]
    return "\n".join(shown)


def _delegations(found: dict[str, Json], style: Style, *, is_part: bool) -> str:
    lines = found["delegations"]
    if not lines:
        return "nothing matches" if is_part else "no delegations"
    at = time.time()
    short = shortened([str(one.get("delegation", "?")) for one in lines], is_part=is_part)
    columns = _columns(style, at)
    rows = [
        [name, *(cell(one) for cell in columns.values())]
        for name, one in zip(short, lines, strict=True)
    ]
    shown = [table(["ID", *columns], rows, style)]
    if found.get("more"):
        shown.append(style.paint("more: fallbackd-client list --all", "dim"))
    return "\n".join(shown)


def _age(one: dict[str, Json], at: float) -> str:
    since_at = one.get("created_at") if one.get("ended_at") is None else one["ended_at"]
    return "" if since_at is None else duration(at - since_at).partition(" ")[0]


def _doing(one: dict[str, Json]) -> str:
    """Say what keeps it from being worked on, instead of what was asked."""
    standby = one.get("standby")
    if isinstance(standby, dict):
        at = standby.get("expects_at")
        return "on standby" + ("" if at is None else f" until {clock(at, time.time())}")
    waits = one.get("blocked_by") and one.get("state") in ("queued", "waiting")
    return f"waits for {one['blocked_by']}" if waits else ""


def directory(path: Json, width: int | None = None) -> str:
    """As people write it, below their home with a `~`; its end, where it is wider than that."""
    if not path:
        return "-"
    home = os.path.expanduser("~")
    shown = str(path)
    if shown == home or shown.startswith(home + "/"):
        shown = "~" + shown[len(home) :]
    shown = one_line(shown)
    if width is None or display_width(shown) <= width:
        return shown
    kept = shown
    while display_width(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}"
