"""
Records on disk, by which a later daemon finds a resident, and the turn on it, again.

| file | directory | holds |
| --- | --- | --- |
| `resident.json` | of the attempt | `TurnRecord`: opened, before its prompt is sent, at its end |
| `turn.json` | of the resident | `ResidentRecord`: before its start, and with each turn |
"""

from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from fallbackd.core.protocol import Exit
from fallbackd.lib import atomicfile, privatefile

TURN_FILE = "resident.json"
RESIDENT_FILE = "turn.json"
MAX_RECORD_BYTES = 16 * 1024 * 1024

T = TypeVar("T", bound=Struct)


class TurnRecord(Struct, frozen=True, kw_only=True):
    phase: Literal["opened", "sending", "ended"]
    """`opened`: no resident has it. `sending`: one may have it."""
    resident: str = ""
    """Name of its directory."""
    exit: Exit | None = None


class ResidentRecord(Struct, frozen=True, kw_only=True):
    way: str
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
    return _read(Path(directory) / TURN_FILE, TurnRecord)


def write_turn(directory: str, record: TurnRecord) -> None:
    """Raises `OSError`: what was there before is there still."""
    _write(Path(directory) / TURN_FILE, record)


def read_resident(directory: Path) -> ResidentRecord | None:
    return _read(directory / RESIDENT_FILE, ResidentRecord)


def write_resident(directory: Path, record: ResidentRecord) -> None:
    _write(directory / RESIDENT_FILE, record)


def _read(path: Path, shape: type[T]) -> T | None:
    try:
        return msgspec.json.decode(
            privatefile.read_file(path, max_bytes=MAX_RECORD_BYTES), type=shape
        )
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(path: Path, record: Struct) -> None:
    # Not to outlive the machine: after a reboot nothing of it runs any more.
    atomicfile.write(str(path), msgspec.json.encode(record), durable=False)
