"""`notify`: try whether notifications arrive."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, one_line, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_LIMIT_S = 90.0


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="send a notification now")


def run(args: argparse.Namespace, client: Client) -> int:
    found = client.call("notify.test", {}, timeout_s=_LIMIT_S)
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
