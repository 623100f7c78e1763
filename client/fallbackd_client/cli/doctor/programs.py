"""The agent CLIs: on the PATH of the daemon, which is not that of a shell, and logged in."""

from __future__ import annotations

import json
import os

from fallbackd_client.cli.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Machine,
    command,
    in_turn,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fallbackd_client.calls import Json

RESTART_SERVICE = "systemctl --user restart fallbackd.service"
RESTART = "fallbackd-client service restart"


class Program:
    """
    What the daemon knows of the program of an agent. It is the daemon's to know: see `Program` in
    `wire.methods.daemon`.
    """

    __slots__ = (
        "files",
        "home",
        "home_replaces",
        "install",
        "login",
        "name",
        "personal",
        "settings",
        "variables",
        "who",
    )

    def __init__(self, known: dict[str, Json]) -> None:
        self.name = str(known.get("name"))
        self.install = str(known.get("install") or "")
        self.login = str(known.get("login") or "")
        self.files = _words(known, "files")
        self.variables = _words(known, "variables")
        self.settings = _words(known, "settings")
        self.personal = str(known.get("personal") or "")
        self.home = str(known.get("home") or "")
        self.home_replaces = str(known.get("home_replaces") or "")
        self.who = _words(known, "who")

    def place(self, file: str, home: str, environ: Mapping[str, str]) -> str:
        """
        Where one of its files is.

        Args:
            file: Below the home directory, where nothing moves it.
            environ: Of the program.
        """
        moved = environ.get(self.home, "") if self.home else ""
        if not os.path.isabs(moved):
            return os.path.join(home, file)
        return os.path.join(moved, file.removeprefix(f"{self.home_replaces}/"))


def _words(known: dict[str, Json], name: str) -> tuple[str, ...]:
    return tuple(str(one) for one in known.get(name) or ())


def programs_of(known: Json) -> tuple[Program, ...]:
    """As `status` or `fallbackd --programs` lists them; none where they do not."""
    found = known if isinstance(known, list) else []
    return tuple(Program(one) for one in found if isinstance(one, dict))


def ask_program(machine: Machine, program: str | None) -> tuple[Program, ...]:
    """
    What is known where no daemon runs to be asked.

    Args:
        program: The daemon's own; None: it is not installed.
    """
    if not program:
        return ()
    ran = machine.run(program, "--programs")
    try:
        return programs_of(json.loads(ran.out)) if ran.status == 0 else ()
    except ValueError:
        return ()


def look_at_programs(
    machine: Machine,
    programs: Sequence[Program],
    daemon_environ: dict[str, str],
    *,
    is_service: bool,
) -> list[Finding]:
    """
    Args:
        programs: Which to look for.
        daemon_environ: What the daemon has or would get; empty: that is not known.
        is_service: It is started by the service manager, and not from a shell.
    """
    path = daemon_environ.get("PATH")
    found: list[Finding] = []
    lost, missing, there = [], [], []
    for program in programs:
        in_shell = machine.which(program.name)
        in_daemon = in_shell if path is None else machine.which(program.name, path)
        if in_daemon is not None:
            there.append(program)
        elif in_shell is not None:
            lost.append(f"{program.name} ({in_shell})")
        elif program.install:
            missing.append(program)
    if lost:
        whose = "service" if is_service else "daemon"
        what = f"the {whose}'s PATH does not include {', '.join(lost)}"
        fix = give_path(machine.env_file) if is_service else RESTART
        found.append(Finding("programs", ERROR, what, fix))
    found += _logins(machine, there, daemon_environ, is_service=is_service)
    level = NOTE if there or lost else WARNING
    found += [
        Finding("programs", level, f"{one.name} is not installed", one.install) for one in missing
    ]
    return found


def _logins(
    machine: Machine,
    programs: Sequence[Program],
    daemon_environ: dict[str, str],
    *,
    is_service: bool,
) -> list[Finding]:
    """Missing ones, then those that are a person's own where a key is asked for."""
    found = [
        _not_logged_in(machine, one, daemon_environ, is_service=is_service)
        for one in programs
        if one.files and not is_logged_in(machine, one, daemon_environ)
    ]
    for one in programs:
        if one.personal and _has_personal_login(machine, one, daemon_environ):
            fix = give_variable(machine.env_file, one.variables[0], is_service=is_service)
            found.append(Finding("programs", NOTE, one.personal, fix))
    return found


def _not_logged_in(
    machine: Machine, program: Program, daemon_environ: dict[str, str], *, is_service: bool
) -> Finding:
    name = variable_of_shell(machine, program) if daemon_environ else None
    if name is None:
        return Finding("programs", WARNING, f"{program.name}: not logged in", program.login)
    what = (
        f"{program.name}: not logged in: {name} is set in this shell, but not in the environment"
        f" of the {'service' if is_service else 'daemon'}"
    )
    fix = RESTART if not is_service else _write_variable(machine.env_file, name)
    return Finding("programs", WARNING, what, fix)


def variable_of_shell(machine: Machine, program: Program) -> str | None:
    """A variable of this shell by which the program logs in, and by no file."""
    files = (program.place(file, machine.home, machine.environ) for file in program.files)
    if any(os.path.exists(place) for place in files):
        return None
    return next((name for name in program.variables if machine.environ.get(name)), None)


def look_at_env_file(
    machine: Machine, daemon_environ: dict[str, str], *, is_service: bool
) -> list[Finding]:
    """Variables that were written into the file after the service had been started."""
    if not is_service or not daemon_environ:
        return []
    changed = [
        name
        for name, value in env_values(machine.read(machine.env_file) or "").items()
        if daemon_environ.get(name) != value
    ]
    if not changed:
        return []
    what = f"{machine.env_file} has changed since the service was started: {', '.join(changed)}"
    return [Finding("service", WARNING, what, RESTART_SERVICE)]


def env_values(text: str) -> dict[str, str]:
    """The variables of an environment file. Source: systemd.exec(5), EnvironmentFile."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[name.strip()] = value
    return found


def give_path(env_file: str) -> str:
    """Put this shell's PATH into the file that the unit reads, in place of one that is there."""
    file = command(env_file)
    return in_turn(
        [
            f"mkdir -p {command(os.path.dirname(env_file))}",
            f"touch {file}",
            f"chmod 600 {file}",
            f"sed -i /^PATH=/d {file}",
            f"printf 'PATH=%s\\n' \"$PATH\" >> {file}",
            RESTART_SERVICE,
        ]
    )


def give_variable(env_file: str, name: str, *, is_service: bool) -> str:
    """Set a variable for the daemon, to what is typed."""
    asked = f"printf '{name}: ' && read -r {name}"
    if not is_service:
        return in_turn([asked, f"export {name}", RESTART])
    return in_turn([asked, _write_variable(env_file, name)])


def _write_variable(env_file: str, name: str) -> str:
    """Put a variable of the shell into the file that the unit reads. Its value is not shown."""
    file = command(env_file)
    return in_turn(
        [
            f"mkdir -p {command(os.path.dirname(env_file))}",
            f"touch {file}",
            f"chmod 600 {file}",
            f"sed -i /^{name}=/d {file}",
            f"printf '{name}=%s\\n' \"${name}\" >> {file}",
            RESTART_SERVICE,
        ]
    )


def _has_personal_login(machine: Machine, program: Program, daemon_environ: dict[str, str]) -> bool:
    environ = daemon_environ or machine.environ
    has_key = any(environ.get(name) for name in program.variables)
    files = (program.place(file, machine.home, environ) for file in program.files)
    return not has_key and any(os.path.exists(place) for place in files)


def is_logged_in(machine: Machine, program: Program, daemon_environ: dict[str, str]) -> bool:
    """Judged from variables and files alone; a login that the user configured is trusted."""
    environ = daemon_environ or machine.environ
    if any(environ.get(name) for name in program.variables):
        return True
    files = (*program.files, *program.settings)
    return any(os.path.exists(program.place(one, machine.home, environ)) for one in files)
