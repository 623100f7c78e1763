"""Completions where the user's shell finds them by itself."""

from __future__ import annotations

import os

from fallbackd_client.cli.setup.changes import Change, file_change
from fallbackd_client.cli.share import COMPLETIONS, shared_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.doctor.findings import Machine

_PLACES = {
    "bash": (
        "fallbackd-client.bash",
        "XDG_DATA_HOME",
        ".local/share",
        "bash-completion/completions/fallbackd-client",
    ),
    "fish": (
        "fallbackd-client.fish",
        "XDG_CONFIG_HOME",
        ".config",
        "fish/completions/fallbackd-client.fish",
    ),
}
"""File, the variable that moves its base, the usual base, the place below it."""


def completion_changes(machine: Machine) -> list[Change]:
    """For the login shell; zsh has no directory of the user's own that it looks into."""
    shell = os.path.basename(machine.environ.get("SHELL", ""))
    if shell not in _PLACES:
        return []
    name, variable, usual, below = _PLACES[shell]
    base = machine.environ.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.join(machine.home, usual)
    try:
        text = shared_text(os.path.join(COMPLETIONS, name))
    except FileNotFoundError:
        return []
    return file_change(machine, os.path.join(base, below), text, note=shell)
