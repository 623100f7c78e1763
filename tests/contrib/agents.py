"""Programs on PATH that print what the agent CLIs print, and the module of voice agents."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "contrib" / "hermes-voice" / "delegation_agent.py"
TRANSCRIPTS = ROOT / "tests" / "backends" / "transcripts"

ANSWER = "PONG-OK from the fake provider."
"""The answer of the recorded runs that succeed."""

PLAIN_OPENCODE = "[backends.opencode]\nserve = false\n"
"""One `opencode run` for each prompt: a program that prints can stand for it."""


def fresh_module() -> ModuleType:
    """The module as its first importer gets it."""
    spec = importlib.util.spec_from_file_location("delegation_agent", MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(tmp_path: Path, name: str, run: str = "ok") -> None:
    """
    Put a program on the PATH of the test's daemon.

    Args:
        run: Name of a recorded run that it repeats, without its pauses.
    """
    recorded = json.loads((TRANSCRIPTS / f"{name}.json").read_text())["runs"]
    found = next(one for one in recorded if one["name"] == run)
    parts = ["cat > /dev/null"]
    for stream, target in (("stdout", ""), ("stderr", " >&2")):
        lines = [line for _, said_on, line in found["lines"] if said_on == stream]
        if lines:
            parts.append("\n".join((f"cat <<'END_OF_RUN'{target}", *lines, "END_OF_RUN")))
    parts.append(f"exit {found['code']}")
    write(tmp_path, name, "\n".join(parts))


def write(tmp_path: Path, name: str, body: str) -> None:
    """Put any shell script on the PATH of the test's daemon."""
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
