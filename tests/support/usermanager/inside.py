"""
Process 1 of the namespaces: makes a machine that `systemd --user` believes in, and starts it.

Started by `unshare` as root, with a pid, mount and cgroup namespace of its own; what it mounts is
seen by nobody else. Prints `ready`, then stays until its standard input ends. Everything in the
namespace dies with it.

Usage: inside.py UID HOME DIRECTORY…: the directories are made reachable for UID.
"""

import os
import pwd
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MANAGER = "/lib/systemd/systemd"
LIMIT_S = 60.0
"""Only a hang takes this long."""
NAME = "fbdtest"


def main(uid: int, home: str, directories: list[str]) -> None:
    mount("--make-rprivate", "/")
    runtime = make_run(uid)
    reach(uid, directories)
    name_user(uid, home)
    cgroup = own_cgroups(uid)
    process = start(uid, home, runtime, cgroup)
    private = runtime / "systemd" / "private"
    ends_at = time.monotonic() + LIMIT_S
    while not private.exists():
        if process.poll() is not None or time.monotonic() > ends_at:
            log = Path(home, "manager.log").read_text(errors="replace")
            sys.exit(f"systemd --user did not come up (status {process.poll()}): {log}")
        time.sleep(0.02)
    print("ready", flush=True)
    reap_until_input_ends()


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def reach(uid: int, directories: list[str]) -> None:
    """
    Put what lies below a directory that UID may not enter where UID finds it all the same.

    The closed directory is covered, in this namespace alone, by an open one that holds nothing but
    the way to what is needed. An interpreter in the home of root is such a case.
    """
    closed: dict[Path, list[Path]] = {}
    for directory in map(Path, directories):
        for parent in reversed(directory.parents):
            found = parent.stat()
            if found.st_uid != uid and not found.st_mode & 0o001:
                closed.setdefault(parent, []).append(directory)
                break
    for parent, needed in closed.items():
        held = []
        for number, directory in enumerate(needed):
            place = Path("/run/held", str(number))
            place.mkdir(parents=True, exist_ok=True)
            mount("--bind", str(directory), str(place))
            held.append(place)
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(parent))
        for place, directory in zip(held, needed, strict=True):
            directory.mkdir(parents=True, exist_ok=True)
            mount("--move", str(place), str(directory))


def make_run(uid: int) -> Path:
    """A `/run` as a booted systemd leaves it; without it the user manager ends without a word."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name in ("system", "unit-root", "mount-rootfs", "propagate", "inaccessible", "journal"):
        Path("/run/systemd", name).mkdir(parents=True)
    runtime = Path("/run/user", str(uid))
    runtime.mkdir(parents=True)
    runtime.chmod(0o700)
    os.chown(runtime, uid, uid)
    return runtime


def name_user(uid: int, home: str) -> None:
    """The manager wants its user to have a name, a home and a shell."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        for file, line in (
            ("passwd", f"{NAME}:x:{uid}:{uid}::{home}:/bin/sh\n"),
            ("group", f"{NAME}:x:{uid}:\n"),
        ):
            own = Path("/run", file)
            own.write_text(Path("/etc", file).read_text() + line)
            mount("--bind", str(own), f"/etc/{file}")


def own_cgroups(uid: int) -> Path:
    """A fresh view of the cgroup that this namespace began in, and a part of it that is UID's."""
    if os.path.ismount("/sys/fs/cgroup"):
        subprocess.run(["umount", "-R", "/sys/fs/cgroup"], check=True)
    mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    slice_of_user = Path(f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service")
    (slice_of_user / "init.scope").mkdir(parents=True)
    for directory in (slice_of_user, slice_of_user / "init.scope"):
        os.chown(directory, uid, uid)
        for file in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(directory / file, uid, uid)
    return slice_of_user / "init.scope"


def start(uid: int, home: str, runtime: Path, cgroup: Path) -> subprocess.Popen[bytes]:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    with Path(home, "manager.log").open("wb") as log:
        return subprocess.Popen(
            [MANAGER, "--user", "--unit=basic.target"],
            env={
                "HOME": home,
                "USER": pwd.getpwuid(uid).pw_name,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "XDG_RUNTIME_DIR": str(runtime),
                "LANG": "C.UTF-8",
            },
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=enter,
            start_new_session=True,
        )


def reap_until_input_ends() -> None:
    """Process 1 inherits whoever is left behind."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready and not os.read(0, 4096):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
