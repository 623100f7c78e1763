"""The agent CLIs: on the PATH of the daemon, which is not that of a shell, and logged in."""

from __future__ import annotations

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

RESTART_SERVICE = "systemctl --user restart fallbackd.service"
RESTART = "fallbackd-client shutdown && fallbackd"


class Program:
    """
    Args:
        install: Command that installs it; empty where its makers give none.
        login: Command that logs in.
        files: Where a login is kept, below the home directory.
        variables: Any of these is a login too.
        settings: A file whose presence means that the user has made own arrangements.
        personal: What became of logins with a personal account, which `files` hold, and what to
            use instead; empty: they work.
    """

    __slots__ = ("files", "install", "login", "name", "personal", "settings", "variables")

    def __init__(
        self,
        name: str,
        *,
        install: str = "",
        login: str = "",
        files: tuple[str, ...] = (),
        variables: tuple[str, ...] = (),
        settings: tuple[str, ...] = (),
        personal: str = "",
    ) -> None:
        self.name = name
        self.install = install
        self.login = login
        self.files = files
        self.variables = variables
        self.settings = settings
        self.personal = personal


PROGRAMS = (
    Program(
        "claude",
        install="npm install -g @anthropic-ai/claude-code",
        login="claude auth login",
        files=(".claude/.credentials.json",),
        variables=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        settings=(".claude/settings.json",),
    ),
    Program(
        "codex",
        install="npm install -g @openai/codex",
        login="codex login",
        files=(".codex/auth.json",),
        variables=("OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME"),
        settings=(".codex/config.toml",),
    ),
    Program(
        "gemini",
        install="npm install -g @google/gemini-cli",
        login="gemini",
        files=(".gemini/oauth_creds.json",),
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        settings=(".gemini/settings.json", ".gemini/.env"),
        personal="Gemini CLI has not served personal accounts since June 2026, only API keys and"
        " organisations: set GEMINI_API_KEY, or install its successor agy",
    ),
    # Serves models without a login too: that it has none is no finding.
    Program("opencode", install="npm install -g opencode-ai", login="opencode auth login"),
    Program("numasec"),
    Program("agy"),
)
LOGINS = {one.name: one.login for one in PROGRAMS if one.login}


def look_at_programs(
    machine: Machine, daemon_environ: dict[str, str], *, is_service: bool
) -> list[Finding]:
    """
    Args:
        daemon_environ: What the daemon has or would get; empty: that is not known.
        is_service: It is started by the service manager, and not from a shell.
    """
    path = daemon_environ.get("PATH")
    found: list[Finding] = []
    lost, missing, there = [], [], []
    for program in PROGRAMS:
        in_shell = machine.which(program.name)
        in_daemon = in_shell if path is None else machine.which(program.name, path)
        if in_daemon is not None:
            there.append(program)
        elif in_shell is not None:
            lost.append(f"{program.name} ({in_shell})")
        else:
            missing.append(program)
    if lost:
        what = (
            f"the {'service' if is_service else 'daemon'}'s PATH does not include {', '.join(lost)}"
        )
        mend = give_path(machine.env_file) if is_service else RESTART
        found.append(Finding("programs", ERROR, what, mend))
    for program in there:
        if program.files and not _is_logged_in(machine, program, daemon_environ):
            what = f"{program.name}: not logged in"
            found.append(Finding("programs", WARNING, what, program.login))
    for program in there:
        if program.personal and _has_personal_login(machine, program, daemon_environ):
            mend = give_variable(machine.env_file, program.variables[0], is_service=is_service)
            found.append(Finding("programs", NOTE, program.personal, mend))
    level = NOTE if there or lost else WARNING
    for program in missing:
        if program.install:
            what = f"{program.name} is not installed"
            found.append(Finding("programs", level, what, program.install))
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
    file = command(env_file)
    return in_turn(
        [
            asked,
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
    files = (os.path.join(machine.home, place) for place in program.files)
    return not has_key and any(os.path.exists(place) for place in files)


def _is_logged_in(machine: Machine, program: Program, daemon_environ: dict[str, str]) -> bool:
    """As far as it shows without asking anybody; what the user has arranged is taken as good."""
    environ = daemon_environ or machine.environ
    if any(environ.get(name) for name in program.variables):
        return True
    places = (*program.files, *program.settings)
    return any(os.path.exists(os.path.join(machine.home, place)) for place in places)
