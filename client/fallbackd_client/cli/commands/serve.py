"""`ping`, `drain`, `undrain`, `shutdown` and `call`: talk to the daemon itself."""

from __future__ import annotations

import argparse
import json
import sys
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.ids import shortened
from fallbackd_client.cli.output import Style, UsageError, duration, emit_json, show, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def _cells(one: dict[str, Json], at: float) -> list[object]:
    return [
        one.get("state", "?"),
        None if one.get("created_at") is None else duration(at - one["created_at"]),
        one.get("active") or one.get("requested"),
        one.get("phase"),
    ]


def waits_for_view(found: dict[str, Json], style: Style, *, nothing: str, then: str) -> str:
    """
    Args:
        nothing: What is said where nothing runs.
        then: How to stop waiting, or to end what runs.
    """
    lines = found.get("waits_for") or []
    count = found.get("running") or 0
    counts = ((count, "delegation"), (found.get("calls") or 0, "gateway call"))
    what = " and ".join(f"{some} {one}{'s' * (some != 1)}" for some, one in counts if some)
    later = found.get("later") or 0
    kept = f"{later} wait for a backend or an answer, until an undrain or the next daemon"
    if not what:
        return f"{kept}\n{nothing}" if later else nothing
    shown = [f"{found.get('state', 'draining')}; waiting for {what} to end"]
    if lines:
        at = time.time()
        short = shortened([str(one.get("delegation", "?")) for one in lines], is_part=True)
        rows = [[name, *_cells(one, at)] for name, one in zip(short, lines, strict=True)]
        shown += ["", table(["ID", "STATE", "SINCE", "BACKEND", "PHASE"], rows, style)]
        if count > len(lines):
            shown.append(f"… and {count - len(lines)} more")
        shown.append("")
    if later:
        shown.append(kept)
    return "\n".join([*shown, style.paint(then, "dim")])


def register_ping(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


register_drain = register_undrain = register_ping


def run_ping(args: argparse.Namespace, client: Client) -> int:
    began = time.perf_counter()
    found = client.call("daemon.ping", {})
    took_ms = (time.perf_counter() - began) * 1000

    def view(answer: dict[str, Json], style: Style) -> str:
        state = answer.get("state") or "running"
        return (
            f"fallbackd {answer.get('version', '?')}, pid {answer.get('pid', '?')}, {state},"
            f" answered in {took_ms:.1f} ms"
        )

    show(args, found, view)
    return exits.OK


def run_drain(args: argparse.Namespace, client: Client) -> int:
    show(args, client.call("daemon.drain", {}), _drain_view)
    return exits.OK


def _drain_view(found: dict[str, Json], style: Style) -> str:
    return waits_for_view(
        found,
        style,
        nothing="drained; nothing runs. Accept work again: fallbackd-client undrain",
        then="Accept work again: fallbackd-client undrain",
    )


def run_undrain(args: argparse.Namespace, client: Client) -> int:
    show(args, client.call("daemon.undrain", {}), lambda found, style: "accepting work")
    return exits.OK


def register_shutdown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-work",
        action="store_true",
        help="cancel running work instead of waiting for it",
    )


def run_shutdown(args: argparse.Namespace, client: Client) -> int:
    params: dict[str, Json] = {"stop_work": True} if args.stop_work else {}
    show(args, client.call("daemon.shutdown", params), _shutdown_view)
    return exits.OK


def _shutdown_view(found: dict[str, Json], style: Style) -> str:
    return waits_for_view(
        found,
        style,
        nothing="shutting down; nothing runs",
        then="Cancel it instead of waiting: fallbackd-client shutdown --stop-work",
    )


def register_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD")
    parser.add_argument("params", metavar="JSON", nargs="?", help="an object; `-`: standard input")


def run_call(args: argparse.Namespace, client: Client) -> int:
    """The result is JSON in any case."""
    emit_json(client.call(args.method, _call_params(args.params)))
    return exits.OK


def _call_params(argument: str | None) -> dict[str, Json]:
    if argument is None:
        return {}
    text = sys.stdin.read() if argument == "-" else argument
    try:
        params = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the parameters are not JSON: {error}") from error
    if not isinstance(params, dict):
        raise UsageError("the parameters have to be a JSON object")
    return params
