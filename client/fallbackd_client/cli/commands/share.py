"""`share` and `notify`: what leaves this machine, shown and tested."""

from __future__ import annotations

import argparse
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, duration, one_line, show, table
from fallbackd_client.cli.parsing import add_actions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

NOT_SHARED = """\
Health is not shared with other machines. To share it, install the client for
Valkey and Redis on each machine (pipx inject fallbackd 'redis>=8.1,<9'), and
write into its configuration:

  [share]
  group = "home"
  url_env = "FALLBACKD_SHARE_URL"   # rediss://user:password@host:6380/0"""


_ACTIONS = {
    "status": "show whether it is connected, and what is shared (the default)",
    "machines": "list the machines of the group",
    "test": "try the connection, step by step",
}


def register_share(parser: argparse.ArgumentParser) -> None:
    add_actions(parser, _ACTIONS, default="status")


def run_share(args: argparse.Namespace, client: Client) -> int:
    if args.action == "test":
        found = client.call("share.test", {})
        show(args, found, steps_view)
        steps = found.get("steps") or []
        return exits.OK if steps and all(one.get("ok") for one in steps) else exits.FAILED
    found = client.call("share.status", {})
    show(args, found, machines_view if args.action == "machines" else status_view)
    return exits.OK


def status_view(found: dict[str, Json], style: Style) -> str:
    one = found.get("share")
    if not isinstance(one, dict):
        return NOT_SHARED
    lines = [sharing_line(one, style)]
    if one.get("problem"):
        lines.append(f"  {one_line(one['problem'])}")
    if one.get("warning"):
        lines.append(style.paint(f"  {one_line(one['warning'])}", "yellow"))
    if one.get("offset_ms") is not None:
        lines.append(f"  the server's clock is {one['offset_ms'] / 1000:+.1f} s from this one's")
    if one.get("outbox"):
        lines.append(f"  {one['outbox']} scopes are not sent yet")
    lines += [f"  ignored: {one_line(each)}" for each in one.get("ignored") or []]
    lines += [f"  {one_line(each)}" for each in one.get("advice") or []]
    lines += _lines_of_absence(one)
    scopes = found.get("scopes") or []
    lines.append("  shared: " + (", ".join(map(one_line, scopes)) or "nothing that is configured"))
    return "\n".join(lines)


def _lines_of_absence(one: dict[str, Json]) -> list[str]:
    """Say how machines manage, and managed, without the server."""
    lines = []
    if one.get("arbiter_away"):
        lines.append("  arbiter away: machines that are cut off take turns of a minute to probe")
    if one.get("alone_at") is not None:
        about = ", ".join(map(one_line, one.get("alone_scopes") or []))
        ago = duration(time.time() - one["alone_at"])
        lines.append(f"  last probe without the server: {ago} ago ({about})")
    return lines


def sharing_line(one: dict[str, Json], style: Style) -> str:
    """One line about sharing, for `status` too."""
    colour = "green" if one.get("state") == "connected" else "yellow"
    state = style.paint(str(one.get("state", "?")), colour)
    count = one.get("machines") or 0
    if one.get("arbiter_away") and one.get("state") != "off":
        state += " · arbiter away"
    words = f"share {state} · group {one.get('group')} · this machine is {one.get('machine')}"
    return words + (f" · {count} {'machine' if count == 1 else 'machines'}" if count else "")


def machines_view(found: dict[str, Json], style: Style) -> str:
    if not isinstance(found.get("share"), dict):
        return NOT_SHARED
    rows = [
        [
            one.get("name", "?"),
            one.get("version", ""),
            one.get("pid", ""),
            f"{duration(one.get('seen_ago_s') or 0)} ago",
        ]
        for one in found.get("machines") or []
    ]
    if not rows:
        return "no machine has been seen yet"
    return table(["MACHINE", "VERSION", "PID", "SEEN"], rows, style)


def steps_view(found: dict[str, Json], style: Style) -> str:
    rows = [
        [
            one.get("step", "?"),
            style.paint("ok", "green") if one.get("ok") else style.paint("failed", "red"),
            f"{(one.get('took_s') or 0) * 1000:.1f} ms",
            one_line(one.get("detail") or ""),
        ]
        for one in found.get("steps") or []
    ]
    return table(["STEP", "RESULT", "TOOK", "FOUND"], rows, style) if rows else NOT_SHARED


_NOTIFY_LIMIT_S = 90.0


def register_notify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="send a notification now")


def run_notify(args: argparse.Namespace, client: Client) -> int:
    found = client.call("notify.test", {}, timeout_s=_NOTIFY_LIMIT_S)
    show(args, found, notify_view)
    return exits.OK if all(one.get("ok") for one in found["deliveries"]) else exits.FAILED


def notify_view(found: dict[str, Json], style: Style) -> str:
    return "\n".join(
        style.paint(
            f"{one_line(one.get('way'))}: {one_line(one.get('detail'))}",
            "green" if one.get("ok") else "red",
        )
        for one in found["deliveries"]
    )
