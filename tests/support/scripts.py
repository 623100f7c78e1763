"""Small programs that stand in for agent CLIs."""

import json
import textwrap
from pathlib import Path
from typing import Any


def script(place: Path, name: str, body: str) -> str:
    """An executable shell script. `$PLACE` in it is the directory of the test."""
    path = place / name
    path.write_text(f"#!/bin/sh\nPLACE='{place}'\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return str(path)


def says(*events: dict[str, Any]) -> str:
    """Lines of a script that print events as JSON lines."""
    lines = "\n".join(json.dumps(event) for event in events)
    return f"cat <<'END_OF_EVENTS'\n{lines}\nEND_OF_EVENTS\n"


def runs_of(place: Path, name: str) -> int:
    """How often a script has begun that says `echo >> "$PLACE/<name>.runs"`."""
    path = place / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0
