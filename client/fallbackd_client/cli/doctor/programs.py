"""The agent CLIs: on the PATH of the daemon, which is not that of a shell, and logged in."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import unquote, urlsplit

from fallbackd_client.cli.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Machine,
    command,
    in_turn,
)
from fallbackd_client.cli.share import OPENCODE_2_PLUGIN, OPENCODE_PLUGIN, shared
from fallbackd_client.interactive.hooks import OUR_PLUGIN
from fallbackd_client.settings.jsonc import Unreadable, strings
from fallbackd_conversations.opencode_versions import unsupported, unverified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fallbackd_client.calls import Json


RESTART_SERVICE = "systemctl --user restart fallbackd.service"
RESTART = "fallbackd-client service restart"


class Program:
    """
    An agent's program, as far as the daemon knows it. It is the daemon's to know: see `Program` in
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
        Return the place of one of its files.

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
    """
    Return the programs as `status` or `fallbackd --programs` lists them; none where they do not.
    """
    found = known if isinstance(known, list) else []
    return tuple(Program(one) for one in found if isinstance(one, dict))


def ask_program(machine: Machine, program: str | None) -> tuple[Program, ...]:
    """
    Return what is known where no daemon runs to be asked.

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


def presumed_environ(
    machine: Machine, programs: Sequence[Program], health: object
) -> dict[str, str]:
    """
    Return the environment of a daemon whose own cannot be seen: that of this shell, without the
    logins of programs that are logged out for the daemon.
    """
    known = health if isinstance(health, dict) else {}
    lacking = {
        name
        for one in programs
        if isinstance(entry := known.get(one.name), dict) and entry.get("reason") in _LOGGED_OUT
        for name in one.variables
    }
    return {name: value for name, value in machine.environ.items() if name not in lacking}


_LOGGED_OUT = ("auth", "not_configured")


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


def look_at_toolchains(
    machine: Machine,
    status: dict[str, Json],
    daemon_environ: Mapping[str, str],
    *,
    is_service: bool,
) -> list[Finding]:
    """
    Args:
        status: Of the daemon, with its toolchains.
        daemon_environ: What the daemon has; empty: that is not known.
    """
    known = status.get("toolchains")
    confinement = str((status.get("daemon") or {}).get("confinement") or "")
    if not isinstance(known, list) or not confinement.startswith(("on", "partly")):
        return []
    if not (cwd := machine.cwd):
        return []
    top = machine.run("git", "-C", cwd, "rev-parse", "--show-toplevel").out.strip()
    signer = _signer(machine, cwd) if top else ""
    used = []
    for each in known:
        sign = _sign(each, dict.fromkeys((cwd, top or cwd)))
        if each.get("name") == signer:
            sign = "commit.gpgsign"
        if sign:
            used.append((each, sign))
    found = [Finding("toolchains", NOTE, _sentence(machine, used))] if used else []
    if signer == "ssh-agent" and daemon_environ and not daemon_environ.get("SSH_AUTH_SOCK"):
        what = "commits here are signed with an ssh key, and the daemon has no SSH_AUTH_SOCK"
        what += ": a key that only ssh-agent holds cannot sign what agents commit"
        if is_service:
            fix = f"systemctl --user import-environment SSH_AUTH_SOCK && {RESTART_SERVICE}"
        else:
            fix = RESTART
        found.append(Finding("toolchains", WARNING, what, fix))
    return found


def _signer(machine: Machine, cwd: str) -> str:
    """The tool that signs commits of this repository; empty: they are not signed."""

    def setting(name: str) -> str:
        return machine.run("git", "-C", cwd, "config", "--get", name).out.strip().lower()

    if setting("commit.gpgsign") not in ("true", "yes", "on", "1"):
        return ""
    return {"ssh": "ssh-agent", "x509": ""}.get(setting("gpg.format"), "gpg")


def _sign(toolchain: dict[str, Json], directories: Mapping[str, None]) -> str:
    """The first file that shows that it is used; empty: none."""
    for name in toolchain.get("signs") or ():
        if any(os.path.exists(os.path.join(each, str(name))) for each in directories):
            return str(name)
    return ""


def _sentence(machine: Machine, used: list[tuple[dict[str, Json], str]]) -> str:
    def short(path: str) -> str:
        below = path.removeprefix(machine.home.rstrip("/") + "/")
        return path if below == path else f"~/{below}"

    tools = ", ".join(f"{each.get('name')} ({sign})" for each, sign in used)
    open_to = ", ".join(
        short(str(path)) for each, _ in used for path in (each.get("writes") or ())[:3]
    )
    refused = ", ".join(str(each["refused"]) for each, _ in used if each.get("refused"))
    what = f"this repository uses {tools}: at `workspace` agents may write to {open_to}"
    if refused:
        what += f"; refused below `full`: {refused}"
    return what + "; `writable` of a backend adds places"


FILES = ("opencode.json", "opencode.jsonc", "config.json")
_RIVAL = re.compile(r"(model|rate-limit)-fallback", re.IGNORECASE)


def unsupported_version(machine: Machine, program: str) -> str:
    """A sentence on a version that cannot be used; empty: it can, or is no opencode."""
    return _said_of_version(machine, unsupported) if program == "opencode" else ""


def _said_of_version(machine: Machine, say: Callable[[str], str]) -> str:
    path = machine.which("opencode")
    return say(machine.run(path, "--version").out) if path is not None else ""


_SECOND = os.path.basename(OPENCODE_2_PLUGIN)


def look_at_opencode(machine: Machine) -> list[Finding]:
    found: list[Finding] = []
    entries = [(path, *one) for path in _configs(machine) for one in _entries(machine, path)]
    if why := unsupported_version(machine, "opencode"):
        what = (
            f"{why}; {machine.which('opencode')} gets no work, and its sessions are not protected"
        )
        for path in _configs(machine):
            if _entries(machine, path) or _entries(machine, path, key="plugins"):
                what += f"; it does not load the plugin that {path} names"
        return [Finding("opencode", WARNING, what)]
    if why := _said_of_version(machine, unverified):
        return [Finding("opencode", NOTE, why + _plugins_of_2(machine))]
    for path, entry, fix in entries:
        if entry.endswith(_SECOND):
            what = (
                f"opencode does not load the plugin: {path} names {entry}, which is for opencode 2"
            )
            found.append(Finding("opencode", ERROR, what, fix))
            continue
        if entry.startswith(("file://", "/", "./", "../", "~/")):
            if not os.path.isfile(_file_of(entry, path)):
                what = (
                    f"opencode does not load the plugin: {path} names {entry}, which is not there"
                )
                found.append(Finding("opencode", ERROR, what, fix))
        else:
            what = (
                f"opencode does not load the plugin: {path} names the npm package {entry}, which"
                " fallbackd does not publish, so that others could; name the file instead"
            )
            found.append(Finding("opencode", ERROR, what, fix))
    if entries:
        found += _rivals(machine)
    if not entries and machine.which("opencode") is not None:
        what = "opencode has no plugin of fallbackd, so that its sessions are not protected"
        found.append(Finding("opencode", NOTE, what, "fallbackd-client hooks install opencode"))
    return found


def _rivals(machine: Machine) -> list[Finding]:
    """Other plugins that send a failed message to another model."""
    named = [(path, entry) for path in _configs(machine) for entry, *_ in _named(machine, path)]
    return [
        Finding(
            "opencode",
            WARNING,
            f"opencode loads {entry} beside the plugin of fallbackd: both send a failed message to"
            f" another model, so that it runs twice; remove one of them from {path}",
        )
        for path, entry in named
        if _RIVAL.search(entry)
    ]


def _configs(machine: Machine, *, existing: bool = True) -> list[str]:
    base = machine.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(machine.home, ".config")
    paths = [os.path.join(base, "opencode", name) for name in FILES]
    if own := machine.environ.get("OPENCODE_CONFIG"):
        paths.append(own)
    return [path for path in paths if os.path.isfile(path)] if existing else paths


def _plugins_of_2(machine: Machine) -> str:
    """Say what is protected of an opencode of version 2, and how."""
    named = [
        (path, entry)
        for path in _configs(machine)
        for key in ("plugin", "plugins")
        for entry, _ in _entries(machine, path, key=key)
    ]
    said = "".join(
        f"; it does not load {entry}, which {path} names and which is for opencode 1"
        for path, entry in named
        if not entry.endswith(_SECOND)
    )
    if own := next((path for path, entry in named if entry.endswith(_SECOND)), None):
        return f"{said}; its sessions are protected through the plugin that {own} names"
    place = _url(shared(OPENCODE_2_PLUGIN) or f"/PATH/TO/fallbackd/contrib/{OPENCODE_2_PLUGIN}")
    return (
        f"{said}; its sessions are protected only where [opencode] servers names its server,"
        f' or with "plugins": ["{place}"] in {_configs(machine, existing=False)[0]}'
    )


def _entries(machine: Machine, path: str, *, key: str = "plugin") -> list[tuple[str, str]]:
    """
    Plugins that are meant to be ours, each with the command that names ours in its place.

    Args:
        key: Version 2 reads `plugins` too.
    """
    text = machine.read(path) or ""
    named = _named(machine, path, key=key)
    return [(entry, _fix(path, text, *at)) for entry, *at in named if OUR_PLUGIN.search(entry)]


def _named(machine: Machine, path: str, *, key: str = "plugin") -> list[tuple[str, int, int]]:
    try:
        return list(strings(machine.read(path) or "", [key]))
    except Unreadable:  # opencode says so itself
        return []


def _file_of(entry: str, config: str) -> str:
    if entry.startswith("file://"):
        return unquote(urlsplit(entry).path)
    return os.path.join(os.path.dirname(config), os.path.expanduser(entry))


def _url(path: str) -> str:
    return f"file://{path}"


def _fix(path: str, text: str, begin: int, end: int) -> str:
    """
    Return a fix that changes this string alone, though the same one may stand in the line before.
    """
    own = shared(OPENCODE_PLUGIN)
    if own is None:
        return ""
    line = text.count("\n", 0, begin)
    in_line = text[text.rfind("\n", 0, begin) + 1 : begin].count(text[begin:end])
    old = re.sub(r"[][\\.*^$#]", r"\\\g<0>", text[begin:end])
    new = re.sub(r"[\\&#]", r"\\\g<0>", json.dumps(_url(own), ensure_ascii=False))
    script = f"{line + 1}s#{old}#{new}#{in_line + 1}"
    return f"sed -i {command(script)} {command(os.path.realpath(path))}"
