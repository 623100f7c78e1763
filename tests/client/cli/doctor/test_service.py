from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.support.agents import program

from fallbackd_client.cli.doctor.daemon import ask_manager, look_at_service

LOGIN_UID = 1234
"""No user of the system, whoever runs this test."""


def findings(home: Home) -> list[tuple[str, str, str]]:
    machine = home.machine()
    service, found = ask_manager(machine)
    return told([*found, *look_at_service(machine, service)])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path, uid=LOGIN_UID)
    found.lingers()
    return found


def test_a_machine_without_systemd_is_well_and_has_no_service(home: Home) -> None:
    [found] = findings(home)
    assert found[0] == "note"
    assert "is not a service" in found[1]


def test_a_service_that_is_installed_and_enabled_is_well(home: Home) -> None:
    home.systemctl()
    assert findings(home) == []


@pytest.mark.parametrize(
    ("service", "socket", "level", "fix"),
    [
        ({"LoadState": "not-found"}, {"LoadState": "not-found"}, "note", "service install"),
        ({"LoadState": "masked"}, {}, "error", "systemctl --user unmask"),
        ({}, {"LoadState": "not-found"}, "error", "service install"),
        ({"NeedDaemonReload": "yes"}, {}, "warning", "systemctl --user daemon-reload"),
        ({"ActiveState": "failed", "Result": "exit-code"}, {}, "error", "reset-failed"),
        ({}, {"ActiveState": "failed"}, "error", "systemctl --user restart fallbackd.socket"),
        ({}, {"UnitFileState": "disabled"}, "warning", "enable --now fallbackd.socket"),
        ({}, {"ActiveState": "inactive"}, "error", "systemctl --user start fallbackd.socket"),
        ({"LoadState": "bad-setting"}, {}, "error", "systemd-analyze verify --user"),
    ],
)
def test_each_trouble_has_its_command(
    service: dict[str, str], socket: dict[str, str], level: str, fix: str, home: Home
) -> None:
    home.systemctl(service=service, socket=socket)
    ((found_level, _, found_fix),) = findings(home)
    assert found_level == level
    assert fix in found_fix


def test_without_linger_the_service_ends_with_the_login(tmp_path: Path) -> None:
    home = Home(tmp_path, uid=LOGIN_UID)
    home.systemctl()
    ((level, _, fix),) = findings(home)
    assert (level, fix) == ("warning", f"loginctl enable-linger {home.machine().user}")


def test_a_program_that_is_gone_is_replaced_by_the_one_on_the_path(home: Home) -> None:
    own = program(home.bin, "fallbackd", "exit 0")
    home.systemctl(service={"ExecStart": "{ path=/nowhere/fallbackd ; argv[]=… ; }"})
    ((level, what, fix),) = findings(home)
    assert level == "error"
    assert "/nowhere/fallbackd" in what
    assert str(own) in fix


def test_a_user_of_the_system_is_told_why_the_socket_sleeps(tmp_path: Path) -> None:
    home = Home(tmp_path, uid=7)
    home.lingers()
    home.systemctl(socket={"ActiveState": "inactive"})
    ((level, _, fix),) = findings(home)
    assert level == "warning"
    assert "ConditionUser=" in fix


def test_a_shell_without_its_runtime_directory_is_told_which(home: Home) -> None:
    program(home.bin, "systemctl", "exit 1")
    home.below_root("/run/systemd/system/x")
    home.below_root(f"/run/user/{LOGIN_UID}/x")
    ((level, _, fix),) = findings(home)
    assert (level, fix) == ("error", f"export XDG_RUNTIME_DIR=/run/user/{LOGIN_UID}")


def test_the_environment_of_the_daemon_is_that_of_its_process_or_the_one_it_would_get(
    home: Home,
) -> None:
    env_file = home.write(home.config.parent / "env", '# keys\nPATH="/from/file"\nKEY=1\n')
    where = {"EnvironmentFiles": f"{env_file} (ignore_errors=yes)", "Environment": "A=b"}
    home.systemctl(service=where)
    service, _ = ask_manager(home.machine())
    environ = service.environ(home.machine())
    assert {name: environ[name] for name in ("PATH", "KEY", "A")} == {
        "PATH": "/from/file",
        "KEY": "1",
        "A": "b",
    }
    home.below_root("/proc/77/environ", "PATH=/of/process\0")
    home.systemctl(service={**where, "MainPID": "77"})
    service, _ = ask_manager(home.machine())
    assert service.environ(home.machine()) == {"PATH": "/of/process"}
