"""What `setup` and `service install` would change, on machines that are made up."""

import os
import sys
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home
from tests.support.agents import program

from fallbackd_client import __version__
from fallbackd_client.cli.commands.completions import script
from fallbackd_client.cli.doctor.daemon import Service, ask_manager
from fallbackd_client.cli.doctor.programs import programs_of
from fallbackd_client.cli.setup.changes import Change, NotMade, file_change, write
from fallbackd_client.cli.setup.starter import completion_changes, config_changes, starter_text
from fallbackd_client.cli.setup.units import (
    NoProgram,
    environment_change,
    install_changes,
    is_outdated,
    linger_change,
    lost_to,
    merged_path,
    uninstall_changes,
    unit_text,
)
from fallbackd_client.cli.share import CONFIG, OPENCODE_PLUGIN, VOICE_MODULE, shared, shared_text

LOGIN_UID = 1234


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path, uid=LOGIN_UID)
    program(found.bin, "fallbackd", "echo '{}'")
    monkeypatch.setattr(sys, "argv", [str(found.bin / "fallbackd-client")])
    return found


def words(changes: list[Change]) -> list[str]:
    return [one.what for one in changes]


def make(changes: list[Change]) -> None:
    for one in changes:
        one.make()


def test_what_is_installed_with_the_package_is_there() -> None:
    for path in (CONFIG, OPENCODE_PLUGIN, VOICE_MODULE, "systemd/fallbackd.service"):
        place = shared(path)
        assert place is not None
        assert os.path.isfile(place)
    assert shared("nothing") is None
    with pytest.raises(FileNotFoundError, match="install fallbackd again"):
        shared_text("nothing")


def test_a_fresh_machine_gets_units_path_and_socket_in_this_order(home: Home) -> None:
    home.systemctl(socket={"ActiveState": "inactive", "UnitFileState": "", "LoadState": "x"})
    machine = home.machine()
    service, _ = ask_manager(machine)
    changes = install_changes(machine, service)
    assert words(changes) == [
        "write ~/.config/fallbackd/env: PATH",
        "write ~/.config/systemd/user/fallbackd.service",
        "write ~/.config/systemd/user/fallbackd.socket",
        "run systemctl --user daemon-reload",
        "run systemctl --user enable --now fallbackd.socket",
    ]
    make(changes)
    unit = (home.path / ".config/systemd/user/fallbackd.service").read_text()
    assert f"\nExecStart={home.bin}/fallbackd\n" in unit
    assert f"\nEnvironmentFile=-{home.path}/.config/fallbackd/env\n" in unit
    env_file = home.path / ".config/fallbackd/env"
    assert env_file.read_text() == f"PATH={home.bin}\n"
    assert env_file.stat().st_mode & 0o777 == 0o600
    home.systemctl()
    service, _ = ask_manager(machine)
    assert words(install_changes(machine, service)) == []


def test_a_running_service_is_restarted_only_if_something_changed(home: Home) -> None:
    home.systemctl(service={"MainPID": "7"})
    service, _ = ask_manager(home.machine())
    make(install_changes(home.machine(), service)[:3])
    home.write(home.path / ".config/fallbackd/env", f"KEY=1\nPATH=/old:{home.bin}\n")
    assert install_changes(home.machine(), service) == []
    upgraded = install_changes(home.machine(), service, is_outdated=True)
    assert [one.partition(":")[0] for one in words(upgraded)] == [
        "run systemctl --user restart fallbackd.service"
    ]
    home.environ["PATH"] = f"{home.bin}:/new"
    assert words(install_changes(home.machine(), service)) == [
        "update ~/.config/fallbackd/env: PATH gains /new",
        "run systemctl --user restart fallbackd.service: running agents continue",
    ]


def test_a_daemon_is_outdated_by_another_version_or_a_later_installation(home: Home) -> None:
    own = home.bin / "fallbackd"
    os.utime(own, (1000, 1000))
    current = {"version": __version__, "started_at": 1001.0}
    assert not is_outdated(current, str(own))
    assert not is_outdated({}, str(own)), "none runs"
    assert is_outdated({**current, "version": "0.0.1"}, str(own))
    assert is_outdated({**current, "started_at": 999.0}, str(own))


def test_a_daemon_in_the_background_that_lacks_an_agent_of_the_shell_is_found(home: Home) -> None:
    machine = home.machine()
    program(home.bin, "codex", "exit 0")
    programs = programs_of([{"name": "codex"}, {"name": "opencode"}])
    assert lost_to(machine, {"path": "/nowhere"}, programs) == ("codex",)
    assert lost_to(machine, {"path": str(home.bin)}, programs) == ()
    assert lost_to(machine, {}, programs) == (), "none runs, or it does not say"


def test_the_path_of_the_service_loses_nothing_and_is_stable() -> None:
    assert merged_path("/a:/b", "") == "/a:/b"
    assert merged_path("/a:/b", "/c:/b") == "/a:/b:/c"
    assert merged_path("/b", "/a:/b") == "/a:/b"
    assert merged_path("relative:.:/a::/a:/b\\c", "") == "/a"


def test_other_variables_stay_and_moved_places_are_told_to_the_service(home: Home) -> None:
    env_file = home.write(home.path / "moved/fallbackd/env", "# keys\nKEY=1\n")
    home.environ["XDG_CONFIG_HOME"] = str(home.path / "moved")
    make(environment_change(home.machine()))
    assert env_file.read_text().splitlines() == [
        "# keys",
        "KEY=1",
        f"XDG_CONFIG_HOME={home.path}/moved",
        f"PATH={home.bin}",
    ]
    assert environment_change(home.machine()) == []


def test_a_login_variable_of_the_shell_is_written_for_the_service_and_never_replaced(
    home: Home,
) -> None:
    home.environ["ANTHROPIC_API_KEY"] = "sk-1"
    changes = environment_change(home.machine(), ["ANTHROPIC_API_KEY"])
    assert "ANTHROPIC_API_KEY" in changes[0].what
    assert "sk-1" not in changes[0].what
    make(changes)
    env_file = home.config.parent / "env"
    assert "ANTHROPIC_API_KEY=sk-1" in env_file.read_text().splitlines()
    assert env_file.stat().st_mode & 0o777 == 0o600
    home.environ["ANTHROPIC_API_KEY"] = "sk-2"
    assert environment_change(home.machine(), ["ANTHROPIC_API_KEY"]) == []


def test_odd_characters_in_the_place_of_the_program_are_quoted(home: Home) -> None:
    text = unit_text(home.machine(), "fallbackd.service", '/my "own" 100%/$x/fallbackd')
    assert '\nExecStart="/my \\"own\\" 100%%/$$x/fallbackd"\n' in text


def test_uninstalling_stops_removes_and_reloads(home: Home) -> None:
    home.systemctl()
    service, _ = ask_manager(home.machine())
    make(install_changes(home.machine(), service)[:3])
    changes = uninstall_changes(home.machine(), service)
    assert words(changes) == [
        "run systemctl --user disable --now fallbackd.socket fallbackd.service",
        "remove ~/.config/systemd/user/fallbackd.service",
        "remove ~/.config/systemd/user/fallbackd.socket",
        "run systemctl --user daemon-reload",
    ]
    make(changes)
    assert (home.path / ".config/fallbackd/env").exists()
    assert uninstall_changes(home.machine(), Service()) == []


def test_lingering_is_offered_where_it_is_off(home: Home) -> None:
    assert linger_change(home.machine()) == [], "without loginctl there is none"
    program(home.bin, "loginctl", "echo 'Access denied' >&2; exit 1")
    (change,) = linger_change(home.machine())
    assert change.optional
    with pytest.raises(NotMade, match="`loginctl enable-linger 1234` failed: Access denied"):
        change.make()
    home.lingers()
    assert linger_change(home.machine()) == []


def test_without_the_daemon_beside_it_nothing_is_installed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.bin / "fallbackd").unlink()
    monkeypatch.setattr(sys, "prefix", str(home.root))
    with pytest.raises(NoProgram, match="install it again"):
        install_changes(home.machine(), Service())


def test_the_first_configuration_sets_nothing_and_keeps_the_explanations(home: Home) -> None:
    own = str(home.bin / "fallbackd")
    make(config_changes(home.machine(), own))
    text = home.config.read_text()
    assert all(line.startswith("#") for line in text.splitlines() if line)
    assert text.startswith("#:schema ./config.schema.json\n")
    assert "#settle_s = 5.0 " in text
    assert (home.config.parent / "config.schema.json").read_text() == "{}\n"
    home.config.write_text("# mine\n")
    assert config_changes(home.machine(), own) == []
    assert starter_text("# a\n\nb = 1\n") == "# a\n\n#b = 1\n"


def test_completions_go_where_the_shell_of_the_user_looks(home: Home) -> None:
    assert completion_changes(home.machine()) == []
    home.environ["SHELL"] = "/usr/bin/fish"
    make(completion_changes(home.machine()))
    place = home.path / ".config/fish/completions/fallbackd-client.fish"
    assert place.read_text() == script("fish")
    assert completion_changes(home.machine()) == []


def test_a_file_is_written_through_its_link_with_its_mode(home: Home, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "config"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link = home.path / "config"
    link.symlink_to(real)
    (change,) = file_change(home.machine(), str(link), "new")
    assert change.what == "update ~/config"
    change.make()
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (
        True,
        "new",
        0o640,
    )
    assert file_change(home.machine(), str(link), "new") == []
    with pytest.raises(NotMade, match="cannot write"):
        write(str(real / "below"), "x", mode=0o600)
