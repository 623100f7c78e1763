"""A finding, and the machine that findings are about: everything that is read goes through it."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess

from fallbackd_client.paths import find_socket
from fallbackd_client.settings.files import regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fallbackd_client.calls import Json

ERROR = "error"
"""Something does not work because of it."""
WARNING = "warning"
"""It works, and will not for long, or not for every user, or not safely."""
NOTE = "note"

_COMMAND_S = 5.0


class Finding:
    """
    Args:
        check: Which look found it: socket, state, configuration, service, programs, daemon.
        level: `ERROR`, `WARNING` or `NOTE`.
        what: A sentence: what is so, and what comes of it.
        fix: A command line that can be pasted into a shell; empty where there is none.
    """

    __slots__ = ("check", "fix", "level", "what")

    def __init__(self, check: str, level: str, what: str, fix: str = "") -> None:
        self.check = check
        self.level = level
        self.what = what
        self.fix = fix

    def document(self) -> dict[str, Json]:
        return {"check": self.check, "level": self.level, "what": self.what, "fix": self.fix}

    def __repr__(self) -> str:
        return f"Finding({self.check!r}, {self.level!r}, {self.what!r}, {self.fix!r})"


class Ran:
    """The result of a command; a status of 127 where it could not be run."""

    __slots__ = ("err", "out", "status")

    def __init__(self, status: int, out: str = "", err: str = "") -> None:
        self.status = status
        self.out = out
        self.err = err


class Machine:
    """
    The user's side of this machine.

    Args:
        socket: Where the daemon is looked for; None: as every client does.
        root: Before the absolute paths that are the same on every machine (`/proc`, `/var/lib`).
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        socket: str | None = None,
        uid: int | None = None,
        root: str = "",
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.uid = os.geteuid() if uid is None else uid
        self.socket = socket or find_socket(self.environ)
        self.root = root
        self.home = self.environ.get("HOME") or os.path.expanduser("~")
        self.config_dir = self._place("XDG_CONFIG_HOME", ".config")
        self.state_dir = self._place("XDG_STATE_HOME", os.path.join(".local", "state"))
        self.config = self.environ.get("FALLBACKD_CONFIG") or os.path.join(
            self.config_dir, "config.toml"
        )
        self.env_file = os.path.join(self.config_dir, "env")
        self.path = self.environ.get("PATH", os.defpath)
        self.cwd = _cwd()

    def _place(self, variable: str, default: str) -> str:
        given = self.environ.get(variable, "")
        if not os.path.isabs(given):
            given = os.path.join(self.home, default)
        return os.path.join(given, "fallbackd")

    def follow(self, daemon: dict[str, Json]) -> None:
        """Look where the running daemon has its files: they may be in other places."""
        state_dir, config = daemon.get("state_dir"), daemon.get("config_path")
        if isinstance(state_dir, str) and os.path.isabs(state_dir):
            self.state_dir = state_dir
        if isinstance(config, str) and os.path.isabs(config):
            self.config = config

    @property
    def user(self) -> str:
        return user_name(self.uid)

    def run(self, *command: str, limit_s: float = _COMMAND_S, given: str = "") -> Ran:
        """
        Run until it has ended, or for so long.

        Args:
            given: What it reads.
        """
        try:
            done = subprocess.run(
                command,
                env=dict(self.environ),
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return Ran(127, err=str(error))
        return Ran(done.returncode, done.stdout, done.stderr)

    def which(self, program: str, path: str | None = None) -> str | None:
        return shutil.which(program, path=self.path if path is None else path)

    def read(self, path: str) -> str | None:
        """Read a file; None where it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
                return file.read()
        except OSError:
            return None

    def environ_of(self, pid: int) -> dict[str, str]:
        """Return the environment that a process of ours got; empty where that cannot be seen."""
        text = self.read(f"{self.root}/proc/{pid}/environ") or ""
        pairs = (word.partition("=") for word in text.split("\0"))
        return {name: value for name, equals, value in pairs if equals}


def _cwd() -> str:
    """The working directory; empty: it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """The name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command(*words: str) -> str:
    """Words as one command line, quoted where they have to be."""
    return " ".join(shlex.quote(word) for word in words)


def in_turn(commands: Sequence[str]) -> str:
    return " && ".join(commands)
