import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home, told

from fallbackd_client.cli.doctor.places import (
    lock_holder,
    look_at_config,
    look_at_socket,
    look_at_state,
)


def listen(path: Path) -> None:
    """A socket file, as a daemon that was killed leaves it."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def fixed(command: str) -> None:
    """What is said to fix it is run as it stands."""
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def test_private_places_are_well(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.socket.parent)
    listen(home.socket)
    home.socket.chmod(0o600)
    home.write(home.state / "fallbackd.db", "")
    home.write(home.config, "")
    machine = home.machine()
    for look in (look_at_socket, look_at_state, look_at_config):
        assert told(look(machine)) == []


def test_places_that_are_not_there_yet_are_well(tmp_path: Path) -> None:
    machine = Home(tmp_path).machine()
    for look in (look_at_socket, look_at_state, look_at_config):
        assert told(look(machine)) == []


def test_a_socket_that_others_reach_is_mended_by_the_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.socket.parent)
    listen(home.socket)
    home.socket.chmod(0o666)
    ((level, what, fix),) = told(look_at_socket(home.machine()))
    assert level == "warning"
    assert "0666" in what
    fixed(fix)
    assert told(look_at_socket(home.machine())) == []


def test_a_socket_directory_that_others_write_to_is_mended_by_the_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.socket.parent, 0o777)
    ((level, _, fix),) = told(look_at_socket(home.machine()))
    assert (level, fix) == ("error", f"chmod 700 {home.socket.parent}")
    fixed(fix)
    assert told(look_at_socket(home.machine())) == []


def test_a_file_in_the_place_of_the_socket_is_moved_away(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(home.socket, "no socket")
    ((level, _, fix),) = told(look_at_socket(home.machine()))
    assert level == "error"
    fixed(fix)
    assert not home.socket.exists()


def test_what_belongs_to_somebody_else_names_him(tmp_path: Path) -> None:
    home = Home(tmp_path, uid=os.geteuid() + 1)
    home.private(home.socket.parent)
    listen(home.socket)
    home.write(home.state / "fallbackd.db", "")
    machine = home.machine()
    directory, place = told(look_at_socket(machine))
    assert directory[2] == f"sudo chown -R {machine.user} {home.socket.parent}"
    assert place[2] == f"sudo rm {home.socket}"
    ((level, _, fix),) = told(look_at_state(machine))
    assert (level, fix) == ("error", f"sudo chown -R {machine.user} {home.state}")


def test_a_state_directory_that_cannot_be_written_is_mended(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.state, 0o500)
    ((level, what, fix),) = told(look_at_state(home.machine()))
    assert level == "error"
    assert "nothing can be written" in what
    fixed(fix)
    assert told(look_at_state(home.machine())) == []


def test_a_state_directory_that_was_no_daemons_and_is_open_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.state, 0o755)
    home.write(home.state / "other", "")
    ((level, _, fix),) = told(look_at_state(home.machine()))
    assert (level, fix) == ("error", f"chmod 700 {home.state}")
    home.write(home.state / "lock", "")
    ((level, _, fix),) = told(look_at_state(home.machine()))
    assert (level, fix) == ("warning", f"chmod 700 {home.state}")


def test_a_directory_below_the_state_that_cannot_be_written_is_mended(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.state)
    home.private(home.state / "servers", 0o777)
    home.private(home.state / "runs", 0o500)
    found = told(look_at_state(home.machine()))
    assert [level for level, _, _ in found] == ["error", "error"]
    for _, _, fix in found:
        fixed(fix)
    assert told(look_at_state(home.machine())) == []


def test_a_damaged_database_that_was_set_aside_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    aside = home.write(home.state / "fallbackd.db.corrupt-17", "x")
    ((level, _, fix),) = told(look_at_state(home.machine()))
    assert (level, fix) == ("warning", f"rm {aside}")


def test_a_configuration_that_others_write_is_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(home.config, "", 0o666)
    ((level, _, fix),) = told(look_at_config(home.machine()))
    assert level == "error"
    fixed(fix)
    assert told(look_at_config(home.machine())) == []


def test_a_configuration_that_cannot_be_read_stays_in_effect_while_its_daemon_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.write(home.config, "", 0o200)
    # As the kernel answers an ordinary user; root may read every file.
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(home.config))
    ((_, what, fix),) = told(look_at_config(home.machine(), is_running=True))
    assert what.endswith("the last good configuration stays in effect until the next start")
    ((_, what, _),) = told(look_at_config(home.machine()))
    assert what.endswith("the built-in configuration is in effect")
    fixed(fix)
    assert home.config.stat().st_mode & 0o777 == 0o600


def test_a_configuration_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.config.parent, 0o555)
    ((level, _, fix),) = told(look_at_config(home.machine()))
    assert level == "error"
    fixed(fix)
    assert told(look_at_config(home.machine())) == []


def test_keys_that_others_may_read_are_a_warning(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(home.config.parent / "env", "KEY=x", 0o644)
    ((level, _, fix),) = told(look_at_config(home.machine()))
    assert level == "warning"
    fixed(fix)
    assert told(look_at_config(home.machine())) == []


def test_names_with_spaces_are_quoted(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.socket = tmp_path / "a b" / "fallbackd" / "control.sock"
    home.write(home.socket, "no socket")
    ((_, _, fix),) = told(look_at_socket(home.machine()))
    assert shlex.split(fix) == ["mv", str(home.socket), f"{home.socket}.away"]


def test_a_lock_is_held_by_whom_the_kernel_names(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lock = home.write(home.state / "lock", "1\n")
    seen = lock.stat()
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}"
    lines = [
        f"1: POSIX  ADVISORY  WRITE 11 {device}:{seen.st_ino} 0 EOF",
        f"2: FLOCK  ADVISORY  WRITE 12 {device}:{seen.st_ino + 1} 0 EOF",
        f"3: FLOCK  ADVISORY  WRITE 13 {device}:{seen.st_ino} 0 EOF",
    ]
    home.below_root("/proc/locks", "\n".join(lines[:2]))
    assert lock_holder(home.machine(), str(lock)) is None
    home.below_root("/proc/locks", "\n".join(lines))
    assert lock_holder(home.machine(), str(lock)) == 13
