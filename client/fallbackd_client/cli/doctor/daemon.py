"""The daemon itself: whether it answers, what it is, and what it says of its backends."""

from __future__ import annotations

import os
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
from fallbackd_client.cli.doctor.service import START, START_MANUALLY
from fallbackd_client.cli.views import said
from fallbackd_client.errors import ClientError, NoDaemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.service import Service
    from fallbackd_client.client import Client

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
    """Whether it is a profile that is built in, for a server that this person does not have."""
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
    """Why no daemon answers."""
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
    """What is wrong, and what repairs it."""
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
