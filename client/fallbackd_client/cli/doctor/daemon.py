"""The daemon itself: whether it answers, what it is, and what it says of its backends."""

from __future__ import annotations

import os
import re
import stat

from fallbackd_client import __version__
from fallbackd_client.cli.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Machine,
    command,
    in_turn,
)
from fallbackd_client.cli.doctor.places import lock_holder
from fallbackd_client.cli.doctor.programs import (
    RESTART,
    RESTART_SERVICE,
    Program,
    give_path,
    programs_of,
    unsupported_version,
)
from fallbackd_client.cli.output import one_line
from fallbackd_client.cli.views import said
from fallbackd_client.errors import ClientError, NoDaemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

    # DROPPED
    from fallbackd_client.client import Client

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
        """
        Return the daemon's environment, now or at its start: the manager's, the unit's, the file's.
        """
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


_LOOK_S = 60.0
_BUILT_IN = "hermes-api"


def look_at_backends(client: Client) -> list[Finding]:
    """Keys that are missing or refused, and providers that do not answer."""
    try:
        answer = client.call("status", {"verbose": True}, timeout_s=_LOOK_S)
    except ClientError:
        return []  # another check reports why there is none
    found = []
    readiness = answer.get("readiness")
    for name, one in readiness.items() if isinstance(readiness, dict) else ():
        for rung in one.get("rungs") or []:
            if rung.get("ok") is False and rung.get("name") in ("login", "models"):
                if is_not_set_up(name, answer.get("health")):
                    continue
                what = f"{name}: {rung['name']}: {rung.get('detail', '')}"
                is_silent = str(rung.get("detail", "")).startswith("no answer")
                fix = f"fallbackd-client health get {command(name)}"
                found.append(Finding("programs", NOTE if is_silent else WARNING, what, fix))
    return found


def is_not_set_up(name: str, health: Json) -> bool:
    """Return whether it is a built-in profile for a server that this person does not have."""
    entry = health.get(name) if isinstance(health, dict) else None
    return name == _BUILT_IN and isinstance(entry, dict) and entry.get("reason") == "not_configured"


_ANSWER_S = 5.0
_OUT = ("rate_limited", "broken", "paused")


def ask_daemon(client: Client) -> dict[str, Json] | ClientError:
    """Its status, or why there is none."""
    try:
        found: dict[str, Json] = client.call("status", {"programs": True}, timeout_s=_ANSWER_S)
    except ClientError as error:
        return error
    return found


def look_at_silence(machine: Machine, service: Service, error: ClientError) -> list[Finding]:
    """Find out why no daemon answers."""
    start = START if service.is_installed else START_MANUALLY
    cause = error.cause if isinstance(error, NoDaemon) else "protocol"
    holder = lock_holder(machine, os.path.join(machine.state_dir, "lock"))
    restart = RESTART_SERVICE if service.pid else start
    match cause:
        case "not_permitted":
            return []  # another finding says whose socket it is
        case "timeout":
            what, fix = _hanging(machine, service, restart, holder)
        case "missing" | "refused" if holder is not None:
            what = f"process {holder} has your state, and does not listen at {machine.socket}"
            fix = in_turn([f"kill {holder}", start])
        case "refused":
            left = _left_behind(machine.socket)
            what = f"nothing answers at {machine.socket}; it was left by a daemon that died"
            fix = start if service.is_installed else in_turn([command("rm", *left), start])
        case "missing":
            what, fix = f"there is no daemon at {machine.socket}", start
        case _:
            what, fix = str(error), restart
    return [Finding("daemon", ERROR, what, fix)]


def _hanging(
    machine: Machine, service: Service, restart: str, holder: int | None
) -> tuple[str, str]:
    """Describe the problem, and its fix."""
    if service.is_installed and not service.is_active:
        what = f"systemd listens at {machine.socket}, but the daemon does not start;"
        return what + " `journalctl --user -u fallbackd.service -n 30` says why", START
    what = f"the daemon at {machine.socket} does not answer: it hangs"
    return what, f"kill -9 {holder}" if holder and not service.pid else restart


def look_at_daemon(machine: Machine, service: Service, status: dict[str, Json]) -> list[Finding]:
    daemon = status.get("daemon") or {}
    restart = RESTART_SERVICE if service.pid and service.pid == daemon.get("pid") else RESTART
    found = []
    version = daemon.get("version")
    if version != __version__:
        what = f"the daemon is fallbackd {version}, this client is {__version__}"
        is_newer = _installed(machine, service) == version
        fix = "pipx install --force ." if is_newer else restart
        found.append(Finding("daemon", WARNING, what, fix))
    found += _state(machine, daemon, restart)
    found += _residents(status.get("residents"))
    found += _troubles(daemon)
    found += _configuration(daemon)
    health = status.get("health") or {}
    config = str(daemon.get("config_path") or machine.config)
    known = {one.name: one for one in programs_of(status.get("programs"))}
    is_service = restart == RESTART_SERVICE
    found += _own_programs(machine, known, health, config, is_service=is_service)
    return found + _backends(machine, health, known)


def _state(machine: Machine, daemon: dict[str, Json], restart: str) -> list[Finding]:
    found = []
    if daemon.get("state") == "draining":
        what = "the daemon takes no new work: it drains"
        found.append(Finding("daemon", WARNING, what, restart))
    store = str(daemon.get("store") or "")
    if ": " in store.partition(";")[0]:
        what = f"the daemon cannot write its records, and takes no new work ({store})"
        place = str(daemon.get("state_dir") or machine.state_dir)
        found.append(Finding("daemon", ERROR, what, command("df", "-h", place)))
    confinement = str(daemon.get("confinement") or "on")
    if confinement != "on":
        found.append(Finding("daemon", NOTE, confinement.partition(": ")[2]))
    kept_back = [str(one) for one in daemon.get("kept_back") or ()]
    if kept_back:
        names = ", ".join(kept_back)
        what = f"{names}: set for the daemon, and given to no agent, which gets what is on a list;"
        what += f' for one that needs it, write allow_env = ["{kept_back[0]}"] in [backends.NAME]'
        found.append(Finding("daemon", NOTE, what))
    return found


def _residents(kept: Json) -> list[Finding]:
    """Programs that stay between two prompts. A daemon that is killed leaves none that rests."""
    if not kept:
        return []
    names = ", ".join(one_line(str(one.get("program", "?"))) for one in kept)
    held = sum(one.get("memory_bytes") or 0 for one in kept) // 2**20
    programs, hold = ("program stays", "holds") if len(kept) == 1 else ("programs stay", "hold")
    what = f"{len(kept)} {programs} for a next prompt ({names}), and {hold} {held} MiB;"
    what += " `residents = 0` in [defaults] keeps none"
    return [Finding("daemon", NOTE, what, command("fallbackd-client", "status"))]


def look_at_file(machine: Machine, service: Service) -> list[Finding]:
    """The configuration as a daemon would read it, where none runs to be asked."""
    program = service.program or machine.which("fallbackd")
    if not program or not os.path.exists(machine.config):
        return []
    checked = machine.run(program, "--config", machine.config, "--check-config")
    fix = command(program, "--config", machine.config, "--check-config")
    if checked.status == 78:
        what = f"the configuration cannot be used: {_first_line(checked.err)}"
        return [Finding("configuration", ERROR, what, fix)]
    return []


def _troubles(daemon: dict[str, Json]) -> list[Finding]:
    """Findings of its own, but for what another look reports: places, the gateway, versions."""
    return [
        Finding(
            "daemon",
            ERROR if one.get("stops_work") else WARNING,
            str(one.get("message")),
            str(one.get("fix") or ""),
        )
        for one in daemon.get("troubles") or []
        if one.get("kind") not in ("exposed", "gateway", "unprotected", "version")
    ]


def _configuration(daemon: dict[str, Json]) -> list[Finding]:
    errors = daemon.get("config_errors") or []
    warnings = daemon.get("config_warnings") or []
    path = daemon.get("config_path") or "the configuration"
    if errors:
        what = f"{path} is not in effect: {_problem(errors[0], path)}"
        return [Finding("configuration", ERROR, what, "fallbackd-client config check")]
    if warnings:
        what = f"{path} is not all in effect: {_problem(warnings[0], path)}"
        return [Finding("configuration", WARNING, what, "fallbackd-client config check")]
    return []


def _problem(problem: Json, file: str) -> str:
    if not isinstance(problem, dict):
        return str(problem)
    where, message = problem.get("path"), str(problem.get("message"))
    return message if where in (None, "", file) else f"{where}: {message}"


def _own_programs(
    machine: Machine,
    known: dict[str, Program],
    health: dict[str, Json],
    config: str,
    *,
    is_service: bool,
) -> list[Finding]:
    """Programs that are missing for backends of the user's own making."""
    found = []
    for name, entry in health.items():
        program = str(entry.get("detail") or "").partition(" ")[0]
        if entry.get("reason") != "not_installed" or not program or program in known:
            continue
        what = f"{name} cannot be used: {entry['detail']}"
        if machine.which(program) is None:
            fix = f"${{EDITOR:-vi}} {command(config)}"
        else:
            fix = give_path(machine.env_file) if is_service else RESTART
        found.append(Finding("programs", WARNING, what, fix))
    return found


def _broken(
    machine: Machine, name: str, entry: dict[str, Json], known: dict[str, Program]
) -> Finding | None:
    reason, detail = str(entry["reason"]), entry.get("detail")
    login = known[name].login if name in known else ""
    words = "is logged out" if reason == "auth" and login else said(reason)
    what = f"{name} {words}" + (f": {detail}" if detail else "")
    if reason == "auth":
        return Finding(
            "daemon", WARNING, what, login or f"fallbackd-client health get {command(name)}"
        )
    if reason == "not_configured" and detail == "version":
        if name in known and unsupported_version(machine, known[name].name):
            return None  # an older version is not what its user wants: see `look_at_opencode`
        what = (
            f"{name}: its version and this fallbackd do not fit together: it refused a flag, "
            "or its runtime cannot load it"
        )
        return Finding("programs", WARNING, what, _renew(name, known))
    if entry.get("source") == "readiness":  # a look that is repeated, and says what to do
        return Finding("daemon", NOTE, what)
    return Finding("daemon", NOTE, what, f"fallbackd-client health clear {command(name)}")


def _backends(
    machine: Machine, health: dict[str, Json], known: dict[str, Program]
) -> list[Finding]:
    looked = [
        _broken(machine, name, entry, known)
        for name, entry in health.items()
        # A program that is missing is reported where programs are.
        if entry.get("state") == "broken"
        and entry.get("reason") not in (None, "not_installed")
        and not is_not_set_up(name, health)
    ]
    found = [one for one in looked if one is not None]
    if health and all(entry.get("state") in _OUT for entry in health.values()):
        what = "no backend can be used now, so all work is refused"
        found.append(Finding("daemon", ERROR, what, "fallbackd-client health"))
    return found


def _renew(name: str, known: dict[str, Program]) -> str:
    install = known[name].install if name in known else ""
    if not install:
        return f"fallbackd-client health get {command(name)}"
    return f"{install}@latest && fallbackd-client health clear {command(name)}"


def _installed(machine: Machine, service: Service) -> str | None:
    """Version of the program that would be started now."""
    program = service.program or machine.which("fallbackd")
    if not program:
        return None
    return machine.run(program, "--version").out.strip().rpartition(" ")[2] or None


def _left_behind(socket: str) -> list[str]:
    left = [socket] if _is_socket(socket) else []
    lock = f"{socket}.lock"
    return left + ([lock] if os.path.exists(lock) else [])


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
