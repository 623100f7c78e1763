import os
import pwd
from pathlib import Path

import pytest

from fallbackd_client.paths import find_socket, settle_home, socket_candidates


def test_the_variable_alone_counts_where_it_is_set() -> None:
    environ = {"FALLBACKD_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert socket_candidates(environ) == ["/a/b.sock"]


def test_the_runtime_directory_goes_before_the_state_directory() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/1", "XDG_STATE_HOME": "/s", "HOME": "/h"}
    assert socket_candidates(environ) == [
        "/run/user/1/fallbackd/control.sock",
        "/s/fallbackd/control.sock",
    ]


def test_the_state_directory_has_a_default() -> None:
    assert socket_candidates({"HOME": "/h"}) == ["/h/.local/state/fallbackd/control.sock"]


def test_relative_directories_are_ignored() -> None:
    environ = {"XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state", "HOME": "/h"}
    assert socket_candidates(environ) == ["/h/.local/state/fallbackd/control.sock"]


def test_the_first_that_exists_is_found(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert find_socket(environ) == str(tmp_path / "run/fallbackd/control.sock")
    (tmp_path / "state/fallbackd").mkdir(parents=True)
    (tmp_path / "state/fallbackd/control.sock").touch()
    assert find_socket(environ) == str(tmp_path / "state/fallbackd/control.sock")


def test_the_runtime_directory_of_the_user_is_found_without_its_variable(tmp_path: Path) -> None:
    socket = tmp_path / str(os.getuid()) / "fallbackd" / "control.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    home = pwd.getpwuid(os.getuid()).pw_dir
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def found(**environ: str) -> str:
        return find_socket({**state, **environ}, runtimes=str(tmp_path))

    assert found(HOME=home) == str(socket)
    assert found() == str(socket)
    assert found(HOME="/elsewhere") != str(socket)
    assert found(HOME=home, XDG_RUNTIME_DIR=str(tmp_path / "run")) != str(socket)
    assert found(HOME=home, FALLBACKD_SOCKET="/a/b.sock") == "/a/b.sock"


def test_a_socket_that_an_earlier_daemon_left_behind_does_not_hide_the_runtime_directory(
    tmp_path: Path,
) -> None:
    user, state = tmp_path / str(os.getuid()) / "fallbackd", tmp_path / "state" / "fallbackd"
    for each in (user, state):
        each.mkdir(parents=True)
        (each / "control.sock").touch()
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert find_socket(environ, runtimes=str(tmp_path)) == str(user / "control.sock")


def test_an_empty_home_is_that_of_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    own = pwd.getpwuid(os.getuid()).pw_dir
    assert socket_candidates({"HOME": ""}) == [f"{own}/.local/state/fallbackd/control.sock"]
    monkeypatch.setenv("HOME", "")
    settle_home()
    assert os.environ["HOME"] == own
