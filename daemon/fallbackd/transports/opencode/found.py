"""Helper servers that an earlier daemon has left: which run still, and what they run with."""

from collections.abc import Mapping
from pathlib import Path

import anyio
from msgspec import Struct

from fallbackd.backends.toolchains import CACHES
from fallbackd.lib.processes import read_environment
from fallbackd.ports.transport import Running, Transport, Unsent
from fallbackd.transports.opencode.record import ServerIdentity, read_server
from fallbackd.transports.process.leftovers import read_identity
from fallbackd.transports.process.runner import tree

OWN_VARIABLES = frozenset({"OPENCODE_SERVER_PASSWORD", "TMPDIR", "PWD", *CACHES})
ENDING_S = 1.0
_LOOK_S = 0.02
_OWN_PREFIX = "FALLBACKD_"


class FoundServer(Struct, frozen=True, kw_only=True):
    key: str
    """Empty: it is of a daemon that did not write it down."""
    running: Running
    environment: Mapping[str, str]
    """Of the process. Empty: it is gone, or may not be looked at."""
    has_ended: bool

    def __repr__(self) -> str:
        return f"Found({self.key!r}, pid={self.running.pid})"

    def runs_with(self, environment: Mapping[str, str]) -> bool:
        """Whether it would be started with the same today, but for what each server has alone."""
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
    """Of the last process that was started there; None: there was none."""
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
    """Those before it had ended when it was made."""
    starts = [each for each in directory.glob("*") if each.name.isdigit()]
    return max(starts, key=lambda each: int(each.name), default=None)
