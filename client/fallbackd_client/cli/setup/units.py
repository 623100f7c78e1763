"""The user service: its units, and the environment that agents are found in."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

from fallbackd_client import __version__
from fallbackd_client.cli.doctor.daemon import SERVICE, SOCKET
from fallbackd_client.cli.doctor.findings import user_name
from fallbackd_client.cli.doctor.places import lock_holder
from fallbackd_client.cli.doctor.programs import env_values
from fallbackd_client.cli.setup.changes import (
    Change,
    NotMade,
    file_change,
    removal,
    run_change,
    short,
)
from fallbackd_client.cli.share import UNITS, shared_text
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.daemon import Service
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.doctor.programs import Program
    from fallbackd_client.client import Client

_SYSTEMCTL = ("systemctl", "--user")
_MOVES = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "FALLBACKD_CONFIG")
"""Variables that say where the daemon's files are: a service has to agree with the shell."""
_UNSAFE = frozenset("\"'\\\n\r")
"""Characters that mean something in an environment file."""


class NoProgram(Exception):
    """`fallbackd` itself was not found."""


def daemon_program(machine: Machine) -> str:
    """
    The `fallbackd` that belongs to this client, by the name that survives an upgrade.

    Raises:
        NoProgram: There is none.
    """
    places = [os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "fallbackd")]
    places += [machine.which("fallbackd") or "", os.path.join(sys.prefix, "bin", "fallbackd")]
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise NoProgram("the program fallbackd is not installed beside this client; install it again")


def unit_dir(machine: Machine) -> str:
    return os.path.join(os.path.dirname(machine.config_dir), "systemd", "user")


def unit_text(machine: Machine, unit: str, program: str) -> str:
    """The unit as it is shipped, with the places of this user."""
    lines = []
    for line in shared_text(os.path.join(UNITS, unit)).splitlines():
        if line.startswith("ExecStart="):
            line = f"ExecStart={_quoted(program)}"
        elif line.startswith("EnvironmentFile="):
            line = f"EnvironmentFile=-{machine.env_file.replace('%', '%%')}"
        elif line.startswith("# Where `pipx install`"):
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """One word of a unit file. Source: systemd.service(5), command lines."""
    path = path.replace("%", "%%").replace("$", "$$")
    if path == shlex.quote(path) or not set(path) & set(" \t;\"'\\"):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _moves(machine: Machine) -> dict[str, str]:
    """Variables of the shell that move the directories of agents."""
    given = {name: machine.environ.get(name, "") for name in _MOVES}
    return {name: value for name, value in given.items() if value and not set(value) & _UNSAFE}


def _gained(machine: Machine, before: str, after: str) -> str:
    new = [one for one in after.split(":") if one not in before.split(":")]
    return ", ".join(short(machine, one) for one in new)


def environment_change(machine: Machine, logins: Collection[str] = ()) -> list[Change]:
    """
    The PATH of the shell for the service, beside whatever else is in its file.

    Args:
        logins: Variables of the shell by which agents log in. One that is in the file stays.
    """
    text = machine.read(machine.env_file) or ""
    lines, values = text.splitlines(), env_values(text)
    known = values.get("PATH")
    path = merged_path(machine.path, known or "")
    keys = {one: machine.environ[one] for one in logins if one not in values}
    safe = {name: value for name, value in keys.items() if not set(value) & _UNSAFE}
    wanted = {**_moves(machine), "PATH": path, **safe}
    missing = {name: value for name, value in wanted.items() if values.get(name) != value}
    if not missing:
        return []
    kept = [line for line in lines if line.partition("=")[0].strip() not in missing]
    kept += [f"{name}={value}" for name, value in missing.items()]
    what = ", ".join(missing)
    if known is not None and missing.keys() == {"PATH"}:
        what = f"PATH gains {_gained(machine, known, path)}"
    return file_change(machine, machine.env_file, "\n".join(kept) + "\n", note=what, mode=0o600)


def merged_path(shell: str, service: str) -> str:
    """Put the shell's directories first; the service loses none. The same again changes nothing."""
    own = [one for one in shell.split(":") if os.path.isabs(one) and not set(one) & _UNSAFE]
    former = [one for one in service.split(":") if one]
    if set(own) <= set(former):
        return service
    return ":".join(dict.fromkeys((*own, *former)))


def _values(service: Service, name: str) -> tuple[str | None, ...]:
    """Return the values for both units."""
    return tuple(service.value(unit, name) for unit in (SERVICE, SOCKET))


def install_changes(
    machine: Machine,
    service: Service,
    *,
    is_outdated: bool = False,
    logins: Collection[str] = (),
) -> list[Change]:
    """
    Everything that makes it a user service which the first client starts; empty: it is one.

    Args:
        is_outdated: The service runs, and another version was installed since.
        logins: As of `environment_change`.

    Raises:
        NoProgram: There is nothing to start.
    """
    program = daemon_program(machine)
    units: list[Change] = []
    for unit in (SERVICE, SOCKET):
        place = os.path.join(unit_dir(machine), unit)
        units += file_change(machine, place, unit_text(machine, unit, program))
    environment = environment_change(machine, logins)
    changes = [*environment, *units]
    if units or "yes" in _values(service, "NeedDaemonReload"):
        changes.append(run_change(machine, *_SYSTEMCTL, "daemon-reload"))
    if "failed" in _values(service, "ActiveState"):
        changes.append(run_change(machine, *_SYSTEMCTL, "reset-failed", SERVICE, SOCKET))
    is_listening = service.value(SOCKET, "ActiveState") == "active"
    if service.value(SOCKET, "UnitFileState") != "enabled" or not is_listening:
        changes.append(run_change(machine, *_SYSTEMCTL, "enable", "--now", SOCKET))
    if service.pid and (units or environment or is_outdated):
        note = "running agents continue"
        changes.append(run_change(machine, *_SYSTEMCTL, "restart", SERVICE, note=note))
    return changes


def linger_change(machine: Machine) -> list[Change]:
    """Keep the service when its user logs out."""
    place = f"{machine.root}/var/lib/systemd/linger/{machine.user}"
    if os.path.exists(place) or machine.which("loginctl") is None:
        return []
    note = "the service keeps running after you log out"
    words = ("loginctl", "enable-linger", machine.user)
    return [run_change(machine, *words, note=note, optional=True)]


def uninstall_changes(machine: Machine, service: Service) -> list[Change]:
    """Stop it and remove its units; configuration and records stay."""
    changes: list[Change] = []
    if service.is_installed:
        changes.append(run_change(machine, *_SYSTEMCTL, "disable", "--now", SOCKET, SERVICE))
    for unit in (SERVICE, SOCKET):
        changes += removal(machine, os.path.join(unit_dir(machine), unit))
    if changes:
        changes.append(run_change(machine, *_SYSTEMCTL, "daemon-reload"))
    return changes


START_S = 60.0
STOP_S = 120.0
_LOOK_S = 0.05
_LOG_LINES = 5


def log_path(machine: Machine) -> str:
    """Return the path to which a daemon that was started here writes its log."""
    return os.path.join(machine.state_dir, "daemon.log")


def running_daemon(client: Client) -> dict[str, Json]:
    """Ask the daemon that answers for its own facts; empty: none does."""
    try:
        found: Json = client.call("status", {}, timeout_s=5.0)
    except ClientError:
        return {}
    daemon = found.get("daemon")
    return daemon if isinstance(daemon, dict) else {}


def daemon_pid(client: Client) -> int | None:
    """Return the process id of the daemon that answers now; None: none does."""
    pid = running_daemon(client).get("pid")
    return pid if isinstance(pid, int) else None


def is_outdated(daemon: dict[str, Json], program: str) -> bool:
    """Return whether the running daemon is another version than the installed one."""
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
