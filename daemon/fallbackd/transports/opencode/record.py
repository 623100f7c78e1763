"""
What is on disk so that a later daemon finds helper servers and the prompts on them again.

| file | where | holds |
| --- | --- | --- |
| `served.json` | attempt's directory | `PromptRecord`: opened, before it is posted, at the end |
| `server.json` | server's directory | `ServerRecord`: before the server is started |
| `prompts/ATTEMPT` | server's directory | nothing: it is there while the prompt is under way |

No password is in any of them: it is read back from the environment of the server's process.
"""

import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from fallbackd.core.protocol import Exit, Permissions
from fallbackd.lib import atomicfile, privatefile

PROMPT_FILE = "served.json"
SERVER_FILE = "server.json"
_PROMPTS = "prompts"

MAX_RECORD_BYTES = 16 * 1024 * 1024

PromptPhase = Literal["opened", "posting", "posted", "ended"]

T = TypeVar("T", bound=Struct)


class ServerIdentity(Struct, frozen=True, kw_only=True):
    """Whose tools those of the prompt are, for when the server and its directory are gone."""

    token: str
    pid: int
    start: int
    """Clock ticks since boot."""
    boot_id: str
    cgroup: str = ""


class PromptRecord(Struct, frozen=True, kw_only=True):
    server: str = ""
    """Name of the server's directory."""
    identity: ServerIdentity | None = None
    session: str = ""
    cwd: str
    permissions: Permissions
    phase: PromptPhase
    """`opened`: no server has it. `posting`: whether one has it is not known; its messages tell."""
    is_alone: bool = True
    before: tuple[tuple[int, int], ...] = ()
    """(pid, start) of what ran below the server when the prompt began."""
    earlier: tuple[str, ...] = ()
    """What its session held before this prompt: ids of messages, and of its subagents' sessions."""
    exit: Exit | None = None


class ServerRecord(Struct, frozen=True, kw_only=True):
    key: str


def read_prompt(directory: str) -> PromptRecord | None:
    """Raises `OSError` where it is unknown whether there is one."""
    return _read(Path(directory) / PROMPT_FILE, PromptRecord)


def write_prompt(directory: str, record: PromptRecord) -> None:
    """Raises `OSError`: what was there before is there still."""
    _write(Path(directory) / PROMPT_FILE, record)


def read_server(directory: Path) -> ServerRecord | None:
    return _read(directory / SERVER_FILE, ServerRecord)


def write_server(directory: Path, record: ServerRecord) -> None:
    _write(directory / SERVER_FILE, record)


def note_prompt(server: Path, attempt: str) -> None:
    """Raises `OSError`."""
    directory = server / _PROMPTS
    directory.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(directory / attempt, flags, 0o600))


def forget_prompt(server: Path, attempt: str) -> None:
    try:
        (server / _PROMPTS / attempt).unlink(missing_ok=True)
    except OSError:
        pass  # it will be waited for in vain, for a while


def noted_prompts(server: Path) -> set[str]:
    try:
        return set(os.listdir(server / _PROMPTS))
    except OSError:
        return set()


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
