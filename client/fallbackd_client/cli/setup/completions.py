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
    name = _PLACES[shell][0]
    try:
        text = shared_text(os.path.join(COMPLETIONS, name))
    except FileNotFoundError:
        return []
    return file_change(machine, _path(machine, shell), text, note=shell)


def installed_completions(machine: Machine) -> list[str]:
    """Files that `completion_changes` has written, for whichever shell."""
    return [path for shell in _PLACES if os.path.isfile(path := _path(machine, shell))]


def _path(machine: Machine, shell: str) -> str:
    _, variable, usual, below = _PLACES[shell]
    base = machine.environ.get(variable, "")
    return os.path.join(base if os.path.isabs(base) else os.path.join(machine.home, usual), below)
