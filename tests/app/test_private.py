"""Places that others could reach are said with the command that fixes them."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
import structlog

from fallbackd.app import private
from fallbackd.app.places import Places
from fallbackd.app.private import Guard, WatchedPath, look, require, watched

ME = os.geteuid()


class Scene:
    def __init__(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state"
        self.runs = self.state / "runs"
        self.socket_dir = tmp_path / "run" / "fallbackd"
        self.config = tmp_path / "config" / "config.toml"
        for directory in (self.runs, self.socket_dir, self.config.parent):
            directory.mkdir(parents=True)
        for directory in (self.state, self.runs, self.socket_dir):
            directory.chmod(0o700)
        self.database = self.state / "fallbackd.db"
        for path in (self.database, self.config):
            path.touch()
            path.chmod(0o600)
        self.places = Places(
            config=str(self.config),
            state_dir=str(self.state),
            socket=str(self.socket_dir / "control.sock"),
        )

    @property
    def what(self) -> WatchedPath:
        return watched(self.places, socket=self.places.socket)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_places_are_well(scene: Scene) -> None:
    assert look(scene.what) == ()
    assert require(scene.what) is None


def test_places_that_are_not_there_are_well(tmp_path: Path) -> None:
    places = Places(
        config=str(tmp_path / "no" / "c.toml"),
        state_dir=str(tmp_path / "none"),
        socket=str(tmp_path / "nowhere" / "fallbackd" / "control.sock"),
    )
    assert look(watched(places, socket=places.socket)) == ()


@pytest.mark.parametrize("name", ["state", "runs", "socket_dir"])
def test_a_directory_for_everybody_stops_work_until_its_command_is_run(
    name: str, scene: Scene
) -> None:
    directory: Path = getattr(scene, name)
    directory.chmod(0o777)
    (trouble,) = look(scene.what)
    assert trouble.stops_work
    assert trouble.kind == private.EXPOSED
    assert trouble.fix == f"chmod 700 {directory}"
    assert trouble.fix in str(require(scene.what))
    subprocess.run(["sh", "-c", trouble.fix], check=True)
    assert look(scene.what) == ()


def test_what_belongs_to_somebody_else_stops_work(scene: Scene) -> None:
    found = look(scene.what, uid=ME + 1)
    assert {one.fix.split()[-1] for one in found if one.stops_work} == {
        str(scene.state),
        str(scene.runs),
        str(scene.socket_dir),
        str(scene.database),
    }
    assert all("chown" in one.fix for one in found)


def test_a_link_in_the_place_of_the_database_stops_work(scene: Scene, tmp_path: Path) -> None:
    scene.database.unlink()
    scene.database.symlink_to(tmp_path / "other")
    (trouble,) = look(scene.what)
    assert (trouble.stops_work, trouble.fix) == (True, f"rm {scene.database}")


def test_what_is_ours_and_only_readable_is_closed(scene: Scene) -> None:
    scene.runs.chmod(0o755)
    scene.database.chmod(0o644)
    with structlog.testing.capture_logs() as logs:
        assert look(scene.what) == ()
    assert (mode(scene.runs), mode(scene.database)) == (0o700, 0o600)
    assert {one["path"] for one in logs} == {str(scene.runs), str(scene.database)}


def test_a_configuration_that_others_write_and_keys_that_others_read_are_warnings(
    scene: Scene,
) -> None:
    scene.config.chmod(0o666)
    env_file = scene.config.with_name("env")
    env_file.touch()
    env_file.chmod(0o644)
    found = look(scene.what)
    assert [(one.stops_work, one.fix) for one in found] == [
        (False, f"chmod go-w {scene.config}"),
        (False, f"chmod 600 {env_file}"),
    ]
    assert require(scene.what) is None
    assert mode(scene.config) == 0o666  # the user's own file is for the user to change


@pytest.mark.parametrize("opened", [0o777, 0o730, 0o500])
def test_the_guard_closes_what_is_ours_again_and_work_goes_on(scene: Scene, opened: int) -> None:
    guard = Guard(scene.what)
    places = (scene.state, scene.runs, scene.socket_dir)
    for place in places:
        place.chmod(opened)
    scene.database.chmod(0o666)
    with structlog.testing.capture_logs() as logs:
        assert guard.look() is None
    assert [mode(place) for place in (*places, scene.database)] == [0o700] * 3 + [0o600]
    assert [one["event"] for one in logs] == ["place.closed"] * 4
    assert guard.troubles == ()


def test_the_guard_says_each_change_once(scene: Scene) -> None:
    guard = Guard(scene.what)
    with structlog.testing.capture_logs() as logs:
        assert guard.look() is None
        scene.database.unlink()
        scene.database.symlink_to(scene.config)
        why = guard.look()
        assert why is not None
        assert f"rm {scene.database}" in why
        assert guard.look() == why
        assert [one.message for one in guard.troubles] == [f"{scene.database} is a symbolic link"]
        scene.database.unlink()
        assert guard.look() is None
    assert [(one["event"], one["log_level"]) for one in logs] == [
        ("place.exposed", "error"),
        ("place.fixed", "warning"),
    ]
    assert guard.troubles == ()
