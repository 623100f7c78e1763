"""`limits`: how much of each plan and key is used, and how long it will last."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, clock, duration, show, table
from fallbackd_client.cli.views import now, window_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", nargs="?", metavar="B", help="only of this backend")


def run(args: argparse.Namespace, client: Client) -> int:
    params = {"action": "list"}
    if args.backend is not None:
        params = {"action": "get", "target": args.backend}
    health = client.call("health", params).get("health") or {}
    found = {name: one["limits"] for name, one in health.items() if one.get("limits")}
    show(args, {"limits": found}, lambda all_, style: _view(all_["limits"], style))
    return exits.OK


def _view(limits: dict[str, Json], style: Style) -> str:
    at = now()
    rows = []
    for backend, figures in limits.items():
        for one in figures:
            rows.append([backend, *_cells(one, at)])
            backend = ""
    if not rows:
        return "no figures yet: they come with the answers of providers and agents"
    headers = ["BACKEND", "WINDOW", "USED", "RESETS", "AT THIS PACE", "SEEN"]
    return table(headers, rows, style, coloured=0)


def _cells(one: dict[str, Json], at: float) -> list[object]:
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
