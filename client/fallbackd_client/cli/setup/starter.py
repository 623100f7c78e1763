"""The first configuration file: the example, with every setting commented out; and its schema."""

from __future__ import annotations

import os

from fallbackd_client.cli.setup.changes import Change, file_change
from fallbackd_client.cli.share import CONFIG, shared_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.doctor.findings import Machine

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


def config_changes(machine: Machine, program: str) -> list[Change]:
    """An existing configuration is never touched; the schema follows the installed version."""
    changes: list[Change] = []
    if not os.path.lexists(machine.config):
        text = starter_text(shared_text(CONFIG))
        note = "explained, nothing set"
        if os.path.isdir(os.path.join(machine.home, VOICE_DIRECTORY)):
            text += _VOICE
            note = "explained; health shared with the voice agent of ~/.hermes"
        changes += file_change(machine, machine.config, text, note=note, mode=0o600)
    ran = machine.run(program, "--config-schema")
    if ran.status == 0 and ran.out:
        place = os.path.join(os.path.dirname(machine.config), SCHEMA)
        changes += file_change(machine, place, ran.out, note="for editors")
    return changes
