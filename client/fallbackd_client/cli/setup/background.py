"""The daemon without a service manager: started in the background, stopped, waited for."""

from __future__ import annotations

import os
import subprocess
import time

from fallbackd_client import __version__
from fallbackd_client.cli.doctor.findings import user_name
from fallbackd_client.cli.doctor.places import lock_holder
from fallbackd_client.cli.setup.changes import Change, NotMade, short
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.doctor.programs import Program
    from fallbackd_client.client import Client

START_S = 60.0
STOP_S = 120.0
_LOOK_S = 0.05
_LOG_LINES = 5


def log_path(machine: Machine) -> str:
    """Where a daemon that was started here writes its log."""
    return os.path.join(machine.state_dir, "daemon.log")


def running_daemon(client: Client) -> dict[str, Json]:
    """What the daemon that answers says of itself; empty: none does."""
    try:
        found: Json = client.call("status", {}, timeout_s=5.0)
    except ClientError:
        return {}
    daemon = found.get("daemon")
    return daemon if isinstance(daemon, dict) else {}


def daemon_pid(client: Client) -> int | None:
    """Of the daemon that answers now; None: none does."""
    pid = running_daemon(client).get("pid")
    return pid if isinstance(pid, int) else None


def is_outdated(daemon: dict[str, Json], program: str) -> bool:
    """Whether what runs is not what is installed now: it was upgraded since."""
    if not daemon:
        return False
    if daemon.get("version") != __version__:
        return True
    started_at = daemon.get("started_at")
    return isinstance(started_at, int | float) and os.stat(program).st_mtime > started_at


def lost_to(
    machine: Machine, daemon: dict[str, Json], programs: Sequence[Program]
) -> tuple[str, ...]:
    """Agents that this shell finds and the daemon that runs does not, as far as can be seen."""
    path = daemon.get("path")  # as it says itself: its memory is closed to other processes
    if not isinstance(path, str):
        return ()
    return tuple(
        one.name
        for one in programs
        if machine.which(one.name) is not None and machine.which(one.name, path) is None
    )


def start_change(machine: Machine, client: Client, program: str) -> Change:
    what = f"start fallbackd in the background ({short(machine, log_path(machine))})"
    return Change(what, lambda: start(machine, client, program))


def start(machine: Machine, client: Client, program: str) -> None:
    """Start it in a session of its own, and return when it answers."""
    path = log_path(machine)
    try:
        os.makedirs(machine.state_dir, mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NotMade(f"cannot write {path}: {error.strerror or error}") from error
    with os.fdopen(handle, "ab") as log:
        begins_at = log.tell()
        try:
            process = subprocess.Popen(
                [program, *([] if client.is_default else ["--socket", client.path])],
                env=dict(machine.environ),
                cwd=machine.home if os.path.isdir(machine.home) else "/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise NotMade(f"cannot start {program}: {error.strerror or error}") from error
    ends_at = time.monotonic() + START_S
    while daemon_pid(client) is None:
        if (status := process.poll()) is not None:
            said = _said(path, begins_at)
            raise NotMade(f"fallbackd ended with exit status {status}: {said}")
        if time.monotonic() > ends_at:
            raise NotMade(f"fallbackd did not answer within {START_S:.0f} s; see {path}")
        time.sleep(_LOOK_S)


def _said(path: str, begins_at: int) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        file.seek(begins_at)
        lines = [line.strip() for line in file if line.strip()]
    return " ".join(lines[-_LOG_LINES:]) or f"see {path}"


def stop_change(machine: Machine, client: Client, pid: int) -> Change:
    what = f"stop the fallbackd that {user_name(machine.uid)} started manually (process {pid})"
    return Change(f"{what}, after its running work", lambda: stop(machine, client))


def stop(machine: Machine, client: Client) -> None:
    """Ask it to drain and end, and return when its state is free."""
    try:
        client.call("daemon.shutdown", {}, timeout_s=STOP_S)
    except ClientError as error:
        raise NotMade(f"cannot stop the running fallbackd: {error}") from error
    client.close()
    ends_at = time.monotonic() + STOP_S
    while (pid := lock_holder(machine, os.path.join(machine.state_dir, "lock"))) is not None:
        if time.monotonic() > ends_at:
            raise NotMade(f"the running fallbackd (process {pid}) did not end; stop it first")
        time.sleep(_LOOK_S)
