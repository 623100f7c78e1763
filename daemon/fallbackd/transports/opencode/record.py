"""
Records on disk by which a later daemon finds helper servers and the prompts on them again.

| file | where | holds |
| --- | --- | --- |
| `served.json` | attempt's directory | `PromptRecord`: opened, before it is posted, at the end |
| `server.json` | server's directory | `ServerRecord`: before the server is started |
| `prompts/ATTEMPT` | server's directory | nothing: it is there while the prompt is under way |

No password is in any of them: it is read back from the environment of the server's process.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct

from fallbackd.backends.toolchains import CACHES
from fallbackd.core.protocol import Exit, Permissions
from fallbackd.lib.atomicfile import load_record, write_record
from fallbackd.lib.processes import read_environment
from fallbackd.ports.transport import Running, Transport, Unsent
from fallbackd.transports.process.leftovers import read_identity
from fallbackd.transports.process.runner import tree

PROMPT_FILE = "served.json"
SERVER_FILE = "server.json"
_PROMPTS = "prompts"


PromptPhase = Literal["opened", "posting", "posted", "ended"]


class ServerIdentity(Struct, frozen=True, kw_only=True):
    """The owner of the tools of the prompt, for when the server and its directory are gone."""

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
    """Content of its session before this prompt: ids of messages and of subagents' sessions."""
    exit: Exit | None = None


class ServerRecord(Struct, frozen=True, kw_only=True):
    key: str


def read_prompt(directory: str) -> PromptRecord | None:
    """Raises `OSError` where it is unknown whether there is one."""
    return load_record(Path(directory) / PROMPT_FILE, PromptRecord)


def write_prompt(directory: str, record: PromptRecord) -> None:
    """Raises `OSError`: what was there before is there still."""
    write_record(Path(directory) / PROMPT_FILE, record)


def read_server(directory: Path) -> ServerRecord | None:
    return load_record(directory / SERVER_FILE, ServerRecord)


def write_server(directory: Path, record: ServerRecord) -> None:
    write_record(directory / SERVER_FILE, record)


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


# --- servers that an earlier daemon has left -----------------------------------------------------
# Helper servers that an earlier daemon has left: which run still, and what they run with.

OWN_VARIABLES = frozenset(
    {"OPENCODE_SERVER_PASSWORD", "OPENCODE_PASSWORD", "TMPDIR", "PWD", *CACHES}
)
ENDING_S = 1.0
_LOOK_S = 0.02
_OWN_PREFIX = "FALLBACKD_"


class FoundServer(Struct, frozen=True, kw_only=True):
    key: str
    """Empty: it is of a daemon that did not write it down."""
    running: Running
    environment: Mapping[str, str]
    """Environment of the process. Empty: it is gone, or may not be looked at."""
    has_ended: bool

    def __repr__(self) -> str:
        return f"Found({self.key!r}, pid={self.running.pid})"

    def runs_with(self, environment: Mapping[str, str]) -> bool:
        """Return whether it would be started with the same today, but for its own variables."""
        return _shared(self.environment) == _shared(environment)


async def find_server(directory: Path, processes: Transport) -> FoundServer | None:
    """
    Re-attach to the process whose runner has its files below `directory`.

    Returns:
        None: there is none, and there will be none.
    """
    last = _last_start(directory)
    if last is None:
        return None
    running = await processes.attach(attempt="server", directory=str(last))
    if running is None or isinstance(running, Unsent):
        return None
    record = read_server(directory)
    identity = identify(directory)
    environment: Mapping[str, str] = {}
    with anyio.move_on_after(ENDING_S):
        # One that is about to be gone has no environment any more.
        while identity is not None and _lives(identity):
            if environment := _environment(identity):
                break
            await anyio.sleep(_LOOK_S)
    return FoundServer(
        key="" if record is None else record.key,
        running=running,
        environment=environment,
        has_ended=identity is None or not _lives(identity),
    )


def identify(directory: Path) -> ServerIdentity | None:
    """Identify the last process that was started there; None: there was none."""
    last = _last_start(directory)
    found = None if last is None else read_identity(str(last))
    if found is None or not found.token:
        return None
    return ServerIdentity(
        token=found.token,
        pid=found.pid,
        start=found.start,
        boot_id=found.boot_id,
        cgroup=found.cgroup,
    )


def _environment(identity: ServerIdentity) -> Mapping[str, str]:
    found = read_environment(identity.pid)
    # Looked at afterwards: then it was this process whose environment was read.
    return found if _lives(identity) else {}


def _lives(identity: ServerIdentity) -> bool:
    if identity.boot_id != tree.boot_id():
        return False
    now = tree.process(identity.pid)
    return now is not None and now.start == identity.start and not now.is_dead


def _shared(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in OWN_VARIABLES and not name.startswith(_OWN_PREFIX)
    }


def _last_start(directory: Path) -> Path | None:
    """Find the last start. Those before it had ended when it was made."""
    starts = [each for each in directory.glob("*") if each.name.isdigit()]
    return max(starts, key=lambda each: int(each.name), default=None)
