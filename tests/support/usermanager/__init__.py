"""
A real, private `systemd --user` beside whatever runs as process 1 of this machine.

    with user_manager() as manager:
        manager.install()
        manager.systemctl("enable", "--now", "fallbackd.socket")

Its user is made up, and unprivileged. Needs root (namespaces and a cgroup), util-linux and systemd;
says so where one is missing. Nothing is left behind: `/run`, the cgroups and the user's name exist
only inside, and every process in there ends with it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "systemd"
INSIDE = Path(__file__).with_name("inside.py")
HANG_S = 60.0
"""Only a hang takes this long."""
UID = 4242
UNSHARE = ("unshare", "-m", "-p", "-C", "-f", "--kill-child", "--mount-proc", "--")
CGROUP_PREFIX = "fallbackd-test."


class CannotRun(AssertionError):
    """This machine has not what it takes. The message says what is missing."""


class UserManager:
    """
    One user of a machine that does not exist.

    Attributes:
        home: The user's, on the real disk; it can be looked at from outside.
        runtime: Its `$XDG_RUNTIME_DIR`, as the user sees it.
    """

    def __init__(self, unshare: subprocess.Popen[bytes], home: Path, uid: int) -> None:
        self.home = home
        self.uid = uid
        self.runtime = f"/run/user/{uid}"
        self.socket = f"{self.runtime}/fallbackd/control.sock"
        self.log_path = home / "daemon.log"
        self.work_dir = home / "work"
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        self._inside = int(children[0])
        self.path = f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin"

    # --- running something inside ------------------------------------------------------------

    def argv(self, *command: str) -> list[str]:
        """A command line for outside that runs `command` inside, as the user."""
        user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        space = ["nsenter", "-t", str(self._inside), "-m", "-p", "-C", f"--wd={self.work_dir}"]
        return [*space, "--", *user, "--inh-caps=-all", *command]

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": self.path,
            "XDG_RUNTIME_DIR": self.runtime,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SYSTEMD_PAGER": "",
            **(more or {}),
        }

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*command),
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *command: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, env=env)
        try:
            out, err = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def systemctl(self, *arguments: str) -> str:
        """`systemctl --user`, which has to succeed. What it printed."""
        done = self.run("systemctl", "--user", *arguments)
        assert done.returncode == 0, f"systemctl {arguments}: {done.stderr}\n{self.log()}"
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", unit, f"--property={name}", "--value")

    def client(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`fallbackd-client`, of the same environment that runs the tests."""
        return self.run(program("fallbackd-client"), *arguments)

    def outside(self, path: str) -> Path:
        """How a path inside is reached from outside."""
        return Path(f"/proc/{self._inside}/root") / path.lstrip("/")

    # --- the daemon --------------------------------------------------------------------------

    def write(self, path: str, text: str, *, mode: int = 0o644) -> Path:
        """A file of the user's, below the home directory."""
        place = self.home / path
        for parent in reversed(place.relative_to(self.home).parents):
            directory = self.home / parent
            if not directory.exists():
                directory.mkdir()
                os.chown(directory, self.uid, self.uid)
        place.write_text(text)
        place.chmod(mode)
        os.chown(place, self.uid, self.uid)
        return place

    def install(self, *, service: str = "", config: str = "") -> None:
        """
        Install the units as they are, with a drop-in that says where the program is.

        Args:
            service: Further lines for the service.
            config: The configuration file of the daemon.
        """
        for unit in ("fallbackd.service", "fallbackd.socket"):
            self.write(f".config/systemd/user/{unit}", (UNITS / unit).read_text())
        log = f"append:{self.log_path}"  # there is no journal in here
        self.write(
            ".config/systemd/user/fallbackd.service.d/test.conf",
            f"[Service]\nExecStart=\nExecStart={program('fallbackd')}\n"
            f"StandardOutput={log}\nStandardError={log}\n"
            f"Environment=PYTHONDONTWRITEBYTECODE=1\n{service}\n",
        )
        self.write(".config/fallbackd/env", f"PATH={self.path}\n", mode=0o600)
        if config:
            self.write(".config/fallbackd/config.toml", config)
        self.systemctl("daemon-reload")

    def log(self) -> str:
        """What the daemon has written, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def main_pid(self) -> int:
        """The daemon, by its number inside; 0: none runs."""
        return int(self.show("fallbackd.service", "MainPID"))

    def send(self, number: signal.Signals) -> int:
        """A signal to the daemon that runs now. Its number inside."""
        pid = self.main_pid()
        assert pid > 1, f"no daemon runs\n{self.log()}"
        assert self.run("kill", f"-{number.value}", str(pid)).returncode == 0
        return pid

    def wait_for(self, what: str, is_so: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + HANG_S
        while not is_so():
            if time.monotonic() > ends_at:
                state = self.run("systemctl", "--user", "status", "--full", "fallbackd.service")
                raise AssertionError(f"{what} did not come\n{state.stdout}\n{self.log()}")
            time.sleep(0.05)


def program(name: str) -> str:
    """A console script of the environment that runs the tests."""
    path = Path(sys.prefix, "bin", name)
    assert path.exists(), f"{path} is missing: install the project (`make setup`) first"
    return str(path)


@contextmanager
def user_manager(*, uid: int = UID) -> Iterator[UserManager]:
    """
    Raises:
        CannotRun: This machine cannot.
    """
    cgroups = require_all()
    home = Path(tempfile.mkdtemp(prefix="fbd-user-"))
    cgroup = cgroups / f"{CGROUP_PREFIX}{os.getpid()}.{home.name[-8:]}"
    sweep(cgroups)
    cgroup.mkdir()
    process: subprocess.Popen[bytes] | None = None
    try:
        for directory in (home, home / "work", home / "bin"):
            directory.mkdir(exist_ok=True)
            os.chown(directory, uid, uid)
        home.chmod(0o700)
        process = unshare(cgroup, uid, home)
        yield UserManager(process, home, uid)
    finally:
        if process is not None:
            end(process)
        kill_cgroup(cgroup)
        shutil.rmtree(home, ignore_errors=True)


def require_all() -> Path:
    """Where the cgroups of version 2 are."""
    if os.geteuid() != 0:
        raise CannotRun("a user manager beside process 1 needs root: run these tests as root")
    for tool in ("unshare", "nsenter", "setpriv", "mount"):
        if shutil.which(tool) is None:
            raise CannotRun(f"{tool} is not on PATH: install util-linux")
    for tool in ("/lib/systemd/systemd", shutil.which("systemctl") or "systemctl"):
        if not os.path.exists(tool):
            raise CannotRun(f"there is no {tool}: install systemd (the package is enough)")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            if not os.access(where, os.W_OK):
                break
            return Path(where)
    raise CannotRun("no writable cgroup2 hierarchy is mounted: run these tests where one is")


def unshare(cgroup: Path, uid: int, home: Path) -> subprocess.Popen[bytes]:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    needed = dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT), str(home)))
    process = subprocess.Popen(
        [*UNSHARE, sys.executable, str(INSIDE), str(uid), str(home), *needed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=enter,
        start_new_session=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        end(process)
        raise CannotRun("the user manager did not come up: its reason stands above, on stderr")
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_cgroup(cgroup: Path) -> None:
    """With all that is still in it."""
    kill = cgroup / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")
    ends_at = time.monotonic() + HANG_S
    while cgroup.exists() and time.monotonic() < ends_at:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                time.sleep(0.02)  # its processes are still ending


def sweep(cgroups: Path) -> None:
    """What test runs have left that were killed themselves."""
    for left in cgroups.glob(f"{CGROUP_PREFIX}*"):
        owner = left.name.removeprefix(CGROUP_PREFIX).partition(".")[0]
        if not os.path.exists(f"/proc/{owner}"):
            kill_cgroup(left)
