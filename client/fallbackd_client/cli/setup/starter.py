"""The first configuration file: the example, with every setting commented out; and its schema."""

from __future__ import annotations

import os

from fallbackd_client.cli.doctor.programs import Program, is_logged_in, unsupported_version
from fallbackd_client.cli.setup.changes import Change, file_change, short
from fallbackd_client.cli.share import CONFIG, shared_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.output import Style

SCHEMA = "config.schema.json"
"""Beside the configuration; its first line names it for editors."""


def starter_text(example: str) -> str:
    """`# words` are explanations, `#key = value` settings that can be switched on."""
    lines = (
        line if not line or line.startswith("#") else f"#{line}" for line in example.splitlines()
    )
    return "\n".join(lines) + "\n"


VOICE_DIRECTORY = ".hermes"
_VOICE = """
# Health is shared with the voice agent that keeps its own in ~/.hermes, and a tmux window follows
# the log of each delegation.
import = ["~/.hermes/voice-platform-health.json"]
export_voice_health = "~/.hermes/voice-platform-health.json"
[defaults]
tmux = true
"""


def _starter(machine: Machine) -> tuple[str, str]:
    """The first configuration file, and what is said of it."""
    text = starter_text(shared_text(CONFIG))
    if os.path.isdir(os.path.join(machine.home, VOICE_DIRECTORY)):
        return text + _VOICE, "explained; health shared with the voice agent of ~/.hermes"
    return text, "explained, nothing set"


def _schema_path(machine: Machine) -> str:
    return os.path.join(os.path.dirname(machine.config), SCHEMA)


def config_changes(machine: Machine, program: str) -> list[Change]:
    """An existing configuration is never touched; the schema follows the installed version."""
    changes: list[Change] = []
    if not os.path.lexists(machine.config):
        text, note = _starter(machine)
        changes += file_change(machine, machine.config, text, note=note, mode=0o600)
    ran = machine.run(program, "--config-schema")
    if ran.status == 0 and ran.out:
        changes += file_change(machine, _schema_path(machine), ran.out, note="for editors")
    return changes


def made_files(machine: Machine) -> list[str]:
    """Files of `config_changes`; a configuration that was changed since is not among them."""
    own = [machine.config] if machine.read(machine.config) == _starter(machine)[0] else []
    return [*own, _schema_path(machine)]


def installed(machine: Machine, programs: Sequence[Program]) -> list[tuple[Program, str]]:
    """List the programs on the PATH of this shell, each with its place."""
    found = [(one, machine.which(one.name)) for one in programs]
    return [(one, place) for one, place in found if place is not None]


def _login(machine: Machine, program: Program, style: Style) -> str:
    if not program.files:
        return ""
    if is_logged_in(machine, program, {}):
        return style.paint("  logged in", "green")
    return style.paint(f"  not logged in: {program.login}", "yellow")


def first_question(machine: Machine, programs: Sequence[Program]) -> str:
    """Return whether to run a prompt. A login that is kept in a key ring cannot be seen."""
    there = [one for one, _ in installed(machine, programs)]
    if any(not one.files or is_logged_in(machine, one, {}) for one in there):
        return "Run a first prompt? It counts towards your plan."
    return (
        f"No agent seems to be logged in (log in with: {there[0].login}).\n"
        "Run a first prompt all the same?"
    )


def agents_view(machine: Machine, programs: Sequence[Program], style: Style) -> str:
    there = installed(machine, programs)
    lines = ["Agents on your PATH:"]
    for one, place in there:
        shown = _login(machine, one, style)
        if why := unsupported_version(machine, one.name):
            shown = style.paint(f"  {why}", "yellow")
        lines.append(f"  {one.name.ljust(9)} {short(machine, place)}{shown}")
    names = {one.name for one, _ in there}
    missing = [one for one in programs if one.name not in names and one.install]
    if not there:
        lines = [f"No agent is on your PATH ({machine.path})."]
    if missing and not there:
        lines.append("Install one, for example:")
        lines += [f"  {one.install}" for one in missing]
    elif missing:
        lines.append(f"  not installed: {', '.join(one.name for one in missing)}")
    return "\n".join(lines)


_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/fallbackd-client"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/fallbackd-client.fish"),
}
"""The variable that moves its base, the usual base, the place below it."""


def completion_changes(machine: Machine) -> list[Change]:
    """Install for the login shell; zsh has no directory of the user's own that it looks into."""
    shell = os.path.basename(machine.environ.get("SHELL", ""))
    if shell not in _PLACES:
        return []
    from fallbackd_client.cli.completions import SCRIPTS, whole_tree

    return file_change(machine, _path(machine, shell), SCRIPTS[shell](whole_tree()), note=shell)


def installed_completions(machine: Machine) -> list[str]:
    """Files that `completion_changes` has written, for whichever shell."""
    return [path for shell in _PLACES if os.path.isfile(path := _path(machine, shell))]


def _path(machine: Machine, shell: str) -> str:
    variable, usual, below = _PLACES[shell]
    base = machine.environ.get(variable, "")
    return os.path.join(base if os.path.isabs(base) else os.path.join(machine.home, usual), below)
