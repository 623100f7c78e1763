"""The programs that the doctor names as a way around the confinement, with real sockets."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fallbackd_client.cli.doctor.findings import Machine
from fallbackd_client.cli.doctor.gateway import look_at_ways

STATUS = {"daemon": {"confinement": "on", "pid": os.getpid()}}


class Place:
    """A runtime directory in which sockets are listened at. This process stands for the daemon."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.environ = {"HOME": str(path / "home"), "XDG_RUNTIME_DIR": str(path)}
        self._stack = stack

    def listen(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))
        listening.listen()
        return path

    def said(self, confinement: str = "on", *, uid: int | None = None) -> str:
        machine = Machine(self.environ, socket=str(self.path / "fallbackd/control.sock"), uid=uid)
        daemon = {**STATUS["daemon"], "confinement": confinement}
        return " ".join(one.what for one in look_at_ways(machine, {"daemon": daemon}))


@pytest.fixture
def place() -> Iterator[Place]:
    """A directory of a short name: the address of a socket has 107 bytes at most."""
    with ExitStack() as stack:
        yield Place(Path(stack.enter_context(TemporaryDirectory(prefix="fbd-"))), stack)


@pytest.mark.parametrize(
    ("socket_name", "name"),
    [
        ("systemd/private", "the service manager"),
        ("docker.sock", "docker"),
        ("podman/podman.sock", "podman"),
        ("containerd/containerd.sock", "containerd"),
        ("tmux-1000/default", "tmux"),
        ("screen/S-me/1.tty", "screen"),
        ("ssh-x/agent.1", "ssh-agent"),
        (".X11-unix/X7", "X11"),
        ("wayland-1", "Wayland"),
        ("mykitty", "kitty"),
        ("wezterm/gui-sock-1", "wezterm"),
        ("vscode-ipc-1.sock", "VS Code"),
    ],
)
def test_a_program_is_named_by_its_usual_socket(place: Place, socket_name: str, name: str) -> None:
    path = place.listen(socket_name)
    assert f"{name} ({path})" in place.said()


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("SSH_AUTH_SOCK", "{}", "ssh-agent"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path={},guid=1", "D-Bus"),
        ("DOCKER_HOST", "unix://{}", "docker"),
        ("TMUX", "{},1,0", "tmux"),
    ],
)
def test_a_program_is_named_by_the_variable_that_says_where_it_listens(
    place: Place, variable: str, value: str, name: str
) -> None:
    path = place.listen("elsewhere")
    place.environ[variable] = value.format(path)
    assert f"{name} ({path})" in place.said()


def test_a_socket_that_is_closed_or_left_behind_is_not_named(place: Place) -> None:
    path = place.listen("docker.sock")
    path.unlink()
    path.touch()
    left = place.path / "tmux-1000" / "default"
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
    assert str(path) not in place.said()
    assert str(left) not in place.said()


def test_nothing_is_said_of_the_daemon_itself_or_without_a_confinement(place: Place) -> None:
    control = place.listen("fallbackd/control.sock")
    docker = place.listen("docker.sock")
    assert str(control) not in place.said()
    assert str(docker) in place.said("partly: before Linux 6.2")
    assert place.said("off: by the configuration") == place.said("no: no Landlock") == ""


LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_UNIX) as two:
    two.bind(sys.argv[1])
    two.listen()
    print(one.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_ours", [False, True])
def test_other_programs_that_listen_are_named_but_for_those_of_the_daemon(
    place: Place, tmp_path: Path, is_ours: bool
) -> None:
    program = tmp_path / "0listens"  # sorts first
    shutil.copy(Path(sys.executable).resolve(), program)
    environ = {"PYTHONHOME": sys.base_prefix, **({"FALLBACKD_RUN": "x"} if is_ours else {})}
    with subprocess.Popen(
        [program, "-I", "-c", LISTEN, str(tmp_path / "other.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    ) as listens:
        assert listens.stdout is not None
        port = int(listens.stdout.readline())
        assert (f"0listens (port {port})" in place.said()) is not is_ours
        listens.communicate()


@pytest.mark.parametrize(("release", "is_named"), [("6.11.4-x", True), ("6.12.0", False)])
def test_an_abstract_socket_counts_where_the_kernel_does_not_refuse_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, release: str, is_named: bool
) -> None:
    name = f"@{place.path}/.X11-unix/X8"
    with socket.socket(socket.AF_UNIX) as display:
        display.bind(name.replace("@", "\0"))
        display.listen()
        here = os.uname()
        monkeypatch.setattr(os, "uname", lambda: type(here)((*here[:2], release, *here[3:])))
        assert (f"X11 ({name})" in place.said()) is is_named
