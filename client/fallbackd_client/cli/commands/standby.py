"""`standby`: the work that waits until a backend is available, and the flags for such a wait."""

from __future__ import annotations

import argparse
import time

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import Style, clock, duration, one_line, show, table
from fallbackd_client.cli.parsing import add_actions, duration_s
from fallbackd_client.cli.views import standing_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_ACTIONS = {
    "list": "list it in the order in which it starts (the default)",
    "start": "start one now, whatever is known of its backends",
    "move": "change when one starts, when it is refused, or its priority",
}
_DAY_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")


def at_time(text: str) -> float:
    """
    The next instant at which the clock says `07:30`, or that of `2026-11-28 07:30`.

    Raises:
        argparse.ArgumentTypeError: It is neither, or over.
    """
    now = time.time()
    try:
        given = time.strptime(text, "%H:%M")
    except ValueError:
        return _on_day(text, now)
    today = time.localtime(now)
    for day in (today.tm_mday, today.tm_mday + 1):
        parts = (today.tm_year, today.tm_mon, day, given.tm_hour, given.tm_min, 0, 0, 0, -1)
        if (found := time.mktime(parts)) > now:
            return found
    raise _no_time(text)


def _on_day(text: str, now: float) -> float:
    for form in _DAY_FORMATS:
        try:
            found = time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
        if found <= now:
            raise argparse.ArgumentTypeError(f"{text!r} is over; give a later time")
        return found
    raise _no_time(text)


def _no_time(text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(
        f"{text!r} is neither a duration nor a time: write 8h, 07:30 or '2026-11-28 07:30'"
    )


def until(text: str) -> dict[str, float]:
    """The end of a wait, as parameters: a duration, or a time of the clock."""
    try:
        found_s = duration_s(text)
    except argparse.ArgumentTypeError:
        return {"wait_until_at": at_time(text)}
    if found_s <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be greater than zero: write 8h or 07:30")
    return {"wait_for_s": found_s}


def not_before(text: str) -> dict[str, float]:
    """The begin of work, as a parameter: after a duration, or at a time of the clock."""
    try:
        found_s = duration_s(text)
    except argparse.ArgumentTypeError:
        return {"not_before_at": at_time(text)}
    return {"not_before_s": found_s} if found_s else {}


def standby_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--until",
        type=until,
        metavar="WHEN",
        help="the longest wait for a backend (8h, 07:30; default: 24h)",
    )
    add(
        "--not-before",
        type=not_before,
        metavar="WHEN",
        help="start nothing before this time (02:00, 3h)",
    )
    add(
        "--priority",
        type=int,
        metavar="N",
        help="of the work that waits for a backend, the highest goes first (-100 to 100)",
    )


def standby_params(args: argparse.Namespace) -> dict[str, Json]:
    return {**(args.until or {}), **(args.not_before or {}), "priority": args.priority}


def register(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS, default="list")
    for name in ("start", "move"):
        actions[name].add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    standby_flags(actions["move"])


def run(args: argparse.Namespace, client: Client) -> int:
    if args.action == "list":
        found = client.call("delegation.list", {"state": "waiting", "brief": True, "limit": 10_000})
        waits = [one for one in found.get("lines") or [] if one.get("standby")]
        waits.sort(key=lambda one: (-one["standby"].get("priority", 0), one["created_at"]))
        show(args, {"standby": waits}, lambda all_, style: _view(all_["standby"], style))
        return exits.OK
    given = {"starts": True} if args.action == "start" else standby_params(args)
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("delegation.standby", {"delegation": args.delegation, **params})
    show(args, found, lambda one, style: _changed(one))
    return exits.OK


def _changed(one: dict[str, Json]) -> str:
    standby = one.get("standby")
    words = standing_by(standby) if isinstance(standby, dict) else str(one.get("state"))
    return f"{one.get('delegation')} {words}"


def _view(waits: list[dict[str, Json]], style: Style) -> str:
    if not waits:
        return "no work waits for a backend"
    at = time.time()
    short = ids.shortened([str(one.get("delegation", "?")) for one in waits])
    rows = [[name, *_cells(one, at)] for name, one in zip(short, waits, strict=True)]
    headers = ["ID", "BACKEND", "PRIORITY", "WAITS", "LOOKS AGAIN", "REFUSED", "PROMPT"]
    return table(headers, rows, style)


def _cells(one: dict[str, Json], at: float) -> list[object]:
    standby: dict[str, Json] = one["standby"]
    expects_at = standby.get("expects_at")
    return [
        one_line(one.get("requested") or "?"),
        standby.get("priority", 0),
        duration(at - float(str(standby.get("since_at") or at))),
        "after a repair" if expects_at is None else clock(float(str(expects_at)), at),
        clock(float(str(standby.get("limit_at") or at)), at),
        one_line(one.get("prompt") or ""),
    ]
