"""The user units: there, enabled, alive, and of a user who may be logged out."""

from __future__ import annotations

import os
import re

from fallbackd_client.cli.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Machine,
    command,
    in_turn,
)

SERVICE = "fallbackd.service"
SOCKET = "fallbackd.socket"
_PROPERTIES = (
    "Id,LoadState,ActiveState,UnitFileState,Result,MainPID,NeedDaemonReload,ExecStart,Environment,"
    "EnvironmentFiles,FragmentPath,ExecMainStatus"
)
_SYSTEM_UIDS = 1000
"""Below it are users of the system, whom the socket unit leaves alone."""

INSTALL = "fallbackd-client service install --yes"
START_MANUALLY = "fallbackd-client service start"
RELOAD = "systemctl --user daemon-reload"
START = in_turn(
    [
        f"systemctl --user reset-failed {SERVICE} {SOCKET}",
        f"systemctl --user restart {SOCKET}",
        f"systemctl --user start {SERVICE}",
    ]
)
"""
Starts the daemon whatever state its units are in, and returns when it listens. Without
`reset-failed` the starts that failed before count, and systemd closes the socket at the next one.
"""


class Service:
    """
    Args:
        units: Properties by unit; empty where no manager answers.
        manager: Environment of the manager.
    """

    def __init__(
        self, units: dict[str, dict[str, str]] | None = None, manager: dict[str, str] | None = None
    ) -> None:
        self.units = units or {}
        self.manager = manager or {}

    def value(self, unit: str, name: str) -> str:
        return self.units.get(unit, {}).get(name, "")

    @property
    def is_installed(self) -> bool:
        return self.value(SERVICE, "LoadState") == "loaded"

    @property
    def is_active(self) -> bool:
        return self.value(SERVICE, "ActiveState") in ("active", "reloading", "deactivating")

    @property
    def pid(self) -> int:
        """0: it does not run."""
        text = self.value(SERVICE, "MainPID")
        return int(text) if text.isdigit() else 0

    @property
    def program(self) -> str:
        found = re.search(r"path=([^ ;]+)", self.value(SERVICE, "ExecStart"))
        return found[1] if found else ""

    def environ(self, machine: Machine) -> dict[str, str]:
        """What the daemon has or would be started with: the manager's, the unit's, the file's."""
        if self.pid:
            running = machine.environ_of(self.pid)
            if running:
                return running
        environ = dict(self.manager)
        environ.update(_assignments(self.value(SERVICE, "Environment").split()))
        for path in re.findall(r"(/\S+) \(ignore_errors", self.value(SERVICE, "EnvironmentFiles")):
            lines = (machine.read(path) or "").splitlines()
            environ.update(_assignments([line.strip() for line in lines]))
        return environ


def ask_manager(machine: Machine) -> tuple[Service, list[Finding]]:
    """The units as the user's manager knows them."""
    if machine.which("systemctl") is None:
        return Service(), []
    shown = machine.run("systemctl", "--user", "show", SERVICE, SOCKET, f"--property={_PROPERTIES}")
    if shown.status != 0:
        return Service(), _no_manager(machine)
    units = {}
    for block in shown.out.strip().split("\n\n"):
        values = _assignments(block.splitlines())
        units[values.get("Id", "")] = values
    environment = machine.run("systemctl", "--user", "show-environment")
    return Service(units, _assignments(environment.out.splitlines())), []


def _no_manager(machine: Machine) -> list[Finding]:
    runtime = f"/run/user/{machine.uid}"
    if not os.path.isdir(f"{machine.root}/run/systemd/system"):
        return []  # this machine has none, and needs none
    if "XDG_RUNTIME_DIR" not in machine.environ and os.path.isdir(f"{machine.root}{runtime}"):
        what = "XDG_RUNTIME_DIR is not set in this shell, so the service cannot be found"
        return [Finding("service", ERROR, what, f"export XDG_RUNTIME_DIR={runtime}")]
    what = f"no user manager runs for {machine.user}, so the daemon cannot be started"
    return [Finding("service", WARNING, what, f"sudo systemctl start user@{machine.uid}.service")]


def look_at_service(machine: Machine, service: Service) -> list[Finding]:
    if not service.units:
        if os.path.isdir(f"{machine.root}/run/systemd/system"):
            return []  # `ask_manager` says why it does not answer
        what = "systemd does not run here, so fallbackd is not a service; start it manually"
        return [Finding("service", NOTE, what, START_MANUALLY)]
    for unit in (SOCKET, SERVICE):
        state = service.value(unit, "LoadState")
        if state == "masked":
            what = f"{unit} is masked and cannot be started"
            fix = f"systemctl --user unmask {SERVICE} {SOCKET}"
            return [Finding("service", ERROR, what, fix)]
        if state in ("error", "bad-setting"):
            what = f"{unit} cannot be read by systemd ({state})"
            fragment = service.value(unit, "FragmentPath") or unit
            fix = command("systemd-analyze", "verify", "--user", fragment)
            return [Finding("service", ERROR, what, fix)]
    if not service.is_installed:
        what = "fallbackd is not installed as a user service, so it has to be started manually"
        return [Finding("service", NOTE, what, INSTALL)]
    found = []
    if "yes" in (service.value(unit, "NeedDaemonReload") for unit in (SERVICE, SOCKET)):
        what = "a unit file has changed on disk; systemd still uses the old one"
        found.append(Finding("service", WARNING, what, RELOAD))
    return [*found, *_program(machine, service), *_states(machine, service), *_linger(machine)]


def _program(machine: Machine, service: Service) -> list[Finding]:
    path = service.program
    if not path or os.access(path, os.X_OK):
        return []
    what = f"the service starts {path}, which does not exist or cannot be run"
    own = machine.which("fallbackd")
    if own is None:
        return [Finding("service", ERROR, what, "pipx install .")]
    drop_in = "~/.config/systemd/user/fallbackd.service.d"
    fix = in_turn(
        [
            f"mkdir -p {drop_in}",
            f"printf '[Service]\\nExecStart=\\nExecStart=%s\\n' {command(own)}"
            f" > {drop_in}/program.conf",
            RELOAD,
        ]
    )
    return [Finding("service", ERROR, what, fix)]


def _states(machine: Machine, service: Service) -> list[Finding]:
    if service.value(SOCKET, "LoadState") != "loaded":
        what = f"{SERVICE} is installed without {SOCKET}, so a client cannot start it"
        return [Finding("service", ERROR, what, INSTALL)]
    found = []
    failed = [u for u in (SERVICE, SOCKET) if service.value(u, "ActiveState") == "failed"]
    if failed:
        why = ", ".join(f"{unit}: {service.value(unit, 'Result')}" for unit in failed)
        status = service.value(SERVICE, "ExecMainStatus")
        code = f", exit status {status}" if SERVICE in failed and status not in ("", "0") else ""
        what = f"the service has failed ({why}{code});"
        what += f" `journalctl --user -u {SERVICE} -n 30` says why"
        found.append(Finding("service", ERROR, what, START))
    if service.value(SOCKET, "UnitFileState") == "disabled":
        what = f"{SOCKET} is not enabled, so the daemon will not start after the next login or boot"
        fix = f"systemctl --user enable --now {SOCKET}"
        found.append(Finding("service", WARNING, what, fix))
    elif service.value(SOCKET, "ActiveState") == "inactive":
        found.append(_idle_socket(machine, service))
    return found


def _idle_socket(machine: Machine, service: Service) -> Finding:
    if machine.uid < _SYSTEM_UIDS:
        what = f"{SOCKET} leaves users of the system alone, and {machine.user} is one"
        drop_in = "~/.config/systemd/user/fallbackd.socket.d"
        fix = in_turn(
            [
                f"mkdir -p {drop_in}",
                f"printf '[Unit]\\nConditionUser=\\n' > {drop_in}/user.conf",
                RELOAD,
                f"systemctl --user start {SOCKET}",
            ]
        )
        return Finding("service", WARNING, what, fix)
    what = f"{SOCKET} is not active, so no caller can start the daemon"
    level = WARNING if service.pid else ERROR
    return Finding("service", level, what, f"systemctl --user start {SOCKET}")


def _linger(machine: Machine) -> list[Finding]:
    if os.path.exists(f"{machine.root}/var/lib/systemd/linger/{machine.user}"):
        return []
    what = f"the service and running agents stop when {machine.user} logs out; enable lingering"
    return [Finding("service", WARNING, what, command("loginctl", "enable-linger", machine.user))]


def _assignments(lines: list[str]) -> dict[str, str]:
    """`NAME=value` lines; others and comments are left out."""
    pairs = [line.partition("=") for line in lines if not line.startswith(("#", ";"))]
    return {name: _unquoted(value) for name, equals, value in pairs if equals}


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
