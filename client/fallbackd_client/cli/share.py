"""The files that come with fallbackd: units, an example configuration, add-ons."""

from __future__ import annotations

import os

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TREE = os.path.dirname(os.path.dirname(_PACKAGE))
_IN_TREE = {"systemd": "systemd"}
"""Where a checkout keeps what does not lie in `contrib`."""

UNITS = "systemd"
CONFIG = os.path.join("config", "config.toml")
OPENCODE_PLUGIN = os.path.join("opencode-plugin", "src", "index.ts")
OPENCODE_2_PLUGIN = os.path.join("opencode-plugin", "src", "second.ts")
OPENCODE_2_TOAST = os.path.join("opencode-plugin", "src", "toast.ts")
VOICE_MODULE = os.path.join("hermes-voice", "delegation_agent.py")


def shared(path: str) -> str | None:
    """
    The absolute path of one of them, in the installed package or in the checkout.

    Returns:
        None: It was not installed.
    """
    first = path.split(os.sep, 1)[0]
    in_tree = path if first in _IN_TREE else os.path.join("contrib", path)
    for place in (os.path.join(_PACKAGE, "share", path), os.path.join(_TREE, in_tree)):
        if os.path.exists(place):
            return place
    return None


def shared_text(path: str) -> str:
    """
    Raises:
        FileNotFoundError: It was not installed.
    """
    place = shared(path)
    if place is None:
        raise FileNotFoundError(f"{path} is not part of this installation; install fallbackd again")
    with open(place, encoding="utf-8") as file:
        return file.read()
