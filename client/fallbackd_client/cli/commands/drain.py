"""`drain`: stop accepting work and let running work finish."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, show
from fallbackd_client.cli.waits_for import waits_for_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace, client: Client) -> int:
    show(args, client.call("daemon.drain", {}), _view)
    return exits.OK


def _view(found: dict[str, Json], style: Style) -> str:
    return waits_for_view(
        found,
        style,
        nothing="drained; nothing runs. Accept work again: fallbackd-client undrain",
        then="Accept work again: fallbackd-client undrain",
    )
