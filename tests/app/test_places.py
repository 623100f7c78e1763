"""Where things are, by flags, environment and custom."""

from pathlib import Path

from fallbackd.app.places import find_places
from fallbackd_client.paths import socket_candidates


def test_flags_come_first() -> None:
    found = find_places({"HOME": "/h"}, config="/c.toml", state_dir="/s", socket="/x.sock")
    assert (found.config, found.state_dir, found.socket) == ("/c.toml", "/s", "/x.sock")
    assert found.database == "/s/fallbackd.db"


def test_then_the_environment() -> None:
    found = find_places(
        {
            "HOME": "/h",
            "FALLBACKD_CONFIG": "/e/f.toml",
            "FALLBACKD_SOCKET": "/e/f.sock",
            "XDG_STATE_HOME": "/e/state",
        }
    )
    assert found.config == "/e/f.toml"
    assert found.socket == "/e/f.sock"
    assert found.state_dir == "/e/state/fallbackd"


def test_then_the_usual_places(tmp_path: Path) -> None:
    found = find_places({"HOME": "/h", "XDG_RUNTIME_DIR": str(tmp_path)})
    assert found.config == "/h/.config/fallbackd/config.toml"
    assert found.state_dir == "/h/.local/state/fallbackd"
    assert found.socket == f"{tmp_path}/fallbackd/control.sock"


def test_relative_variables_are_ignored() -> None:
    found = find_places({"HOME": "/h", "XDG_CONFIG_HOME": "c", "XDG_STATE_HOME": "s"})
    assert found.config == "/h/.config/fallbackd/config.toml"
    assert found.state_dir == "/h/.local/state/fallbackd"


def test_a_runtime_directory_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "XDG_RUNTIME_DIR": str(tmp_path / "gone")}
    assert find_places(environ).socket == "/h/.local/state/fallbackd/control.sock"
    assert find_places(environ).socket in socket_candidates(environ)
