"""`ping`: whether the daemon answers."""

from __future__ import annotations

import argparse
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace, client: Client) -> int:
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
