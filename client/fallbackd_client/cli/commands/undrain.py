"""`undrain`: take new work again after a drain."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace, client: Client) -> int:
    show(args, client.call("daemon.undrain", {}), lambda found, style: "accepting work")
    return exits.OK
