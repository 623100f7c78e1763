"""
Records on disk, by which a later daemon finds a resident, and the turn on it, again.

| file | directory | holds |
| --- | --- | --- |
| `resident.json` | of the attempt | `TurnRecord`: opened, before its prompt is sent, at its end |
| `turn.json` | of the resident | `ResidentRecord`: before its start, and with each turn |
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.core.protocol import Exit
from fallbackd.lib.atomicfile import load_record, write_record

TURN_FILE = "resident.json"
RESIDENT_FILE = "turn.json"


class TurnRecord(Struct, frozen=True, kw_only=True):
    phase: Literal["opened", "sending", "ended"]
    """`opened`: no resident has it. `sending`: one may have it."""
    resident: str = ""
    """Name of its directory."""
    exit: Exit | None = None


class ResidentRecord(Struct, frozen=True, kw_only=True):
    way: str
    session: Mapping[str, Any] = field(default_factory=dict)
    """See `core.protocol.Residency`."""
    attempt: str = ""
    """Whose turn it is; empty: none is under way."""
    is_first: bool = False
    """The process was started for this turn."""
    offset: int = 0
    """Size of what it had printed when the turn began."""
    head: str = ""
    """The line of our own that begins the turn's output."""
    before: tuple[tuple[int, int], ...] = ()
    """(pid, start) of what ran below its runner when the turn began."""


def read_turn(directory: str) -> TurnRecord | None:
    """Raises `OSError` where it is unknown whether there is one."""
    return load_record(Path(directory) / TURN_FILE, TurnRecord)


def write_turn(directory: str, record: TurnRecord) -> None:
    """Raises `OSError`: what was there before is there still."""
    write_record(Path(directory) / TURN_FILE, record)


def read_resident(directory: Path) -> ResidentRecord | None:
    return load_record(directory / RESIDENT_FILE, ResidentRecord)


def write_resident(directory: Path, record: ResidentRecord) -> None:
    write_record(directory / RESIDENT_FILE, record)
