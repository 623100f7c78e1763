import json
import subprocess
from pathlib import Path

from tests.client.cli.doctor.scene import PROGRAMS, Home, told
from tests.support.agents import program

from fallbackd_client.cli.doctor.programs import (
    ask_program,
    give_path,
    give_variable,
    look_at_env_file,
    look_at_programs,
    presumed_environ,
)


def install(directory: Path, *names: str) -> None:
    for name in names:
        program(directory, name, "exit 0")


def test_a_program_that_only_the_shell_finds_is_an_error_with_the_way_to_the_file(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    install(home.bin, "opencode")
    path = {"PATH": str(home.daemon_bin)}
    first, *missing = told(look_at_programs(home.machine(), PROGRAMS, path, is_service=True))
    assert first[0] == "error"
    assert str(home.bin / "opencode") in first[1]
    assert first[2] == give_path(str(home.config.parent / "env"))
    assert {level for level, _, _ in missing} == {"note"}
    by_hand = told(look_at_programs(home.machine(), PROGRAMS, path, is_service=False))
    assert by_hand[0][2] == "fallbackd-client service restart"


def test_the_command_for_the_path_replaces_what_stood_there(tmp_path: Path) -> None:
    home = Home(tmp_path)
    env_file = home.write(home.config.parent / "env", "KEY=1\nPATH=/old\n", 0o644)
    path = f"{home.bin}:/usr/bin:/bin"
    install(home.bin, "systemctl")
    done = subprocess.run(["sh", "-c", give_path(str(env_file))], env={"PATH": path}, check=False)
    assert done.returncode == 0
    assert env_file.read_text() == f"KEY=1\nPATH={path}\n"
    assert env_file.stat().st_mode & 0o777 == 0o600


def test_missing_programs_are_a_warning_where_there_is_none_at_all(tmp_path: Path) -> None:
    found = told(look_at_programs(Home(tmp_path).machine(), PROGRAMS, {}, is_service=False))
    assert {level for level, _, _ in found} == {"warning"}
    assert "npm install -g @openai/codex" in {fix for _, _, fix in found}


def test_a_login_is_missed_until_its_file_or_its_variable_is_there(tmp_path: Path) -> None:
    home = Home(tmp_path)
    install(home.bin, *(one.name for one in PROGRAMS))
    found = told(look_at_programs(home.machine(), PROGRAMS, {}, is_service=False))
    assert [fix for _, _, fix in found] == ["claude auth login", "codex login", "gemini"]
    home.write(home.path / ".codex" / "auth.json", "{}")
    environ = {"PATH": str(home.bin), "ANTHROPIC_API_KEY": "x"}
    found = told(look_at_programs(home.machine(), PROGRAMS, environ, is_service=False))
    assert [fix for _, _, fix in found] == ["gemini"]


def test_a_personal_login_of_gemini_is_a_note_with_what_to_use_instead(tmp_path: Path) -> None:
    home = Home(tmp_path)
    install(home.bin, *(one.name for one in PROGRAMS))
    home.write(home.path / ".gemini" / "oauth_creds.json", "{}")
    environ = {"PATH": str(home.bin), "ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "x"}
    [(level, what, fix)] = told(
        look_at_programs(home.machine(), PROGRAMS, environ, is_service=True)
    )
    assert level == "note"
    assert "personal accounts since June 2026" in what
    assert "agy" in what
    assert fix == give_variable(str(home.config.parent / "env"), "GEMINI_API_KEY", is_service=True)
    with_key = {**environ, "GEMINI_API_KEY": "x"}
    assert told(look_at_programs(home.machine(), PROGRAMS, with_key, is_service=True)) == []


def test_the_command_for_a_variable_replaces_what_stood_there(tmp_path: Path) -> None:
    home = Home(tmp_path)
    env_file = home.write(home.config.parent / "env", "A=1\nGEMINI_API_KEY=old\n", 0o644)
    install(home.bin, "systemctl")
    subprocess.run(
        ["sh", "-c", give_variable(str(env_file), "GEMINI_API_KEY", is_service=True)],
        env={"PATH": f"{home.bin}:/usr/bin:/bin"},
        input=b"typed\n",
        check=True,
    )
    assert env_file.read_text() == "A=1\nGEMINI_API_KEY=typed\n"
    assert env_file.stat().st_mode & 0o777 == 0o600


def test_where_no_daemon_runs_its_program_says_what_is_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    listed = json.dumps([{"name": "swan", "install": "get swan"}])
    program(home.bin, "fallbackd", f"test \"$1\" = --programs && echo '{listed}'")
    found = ask_program(home.machine(), str(home.bin / "fallbackd"))
    assert [(one.name, one.install, one.files) for one in found] == [("swan", "get swan", ())]
    assert ask_program(home.machine(), None) == ()
    program(home.bin, "older", "exit 2")
    assert ask_program(home.machine(), str(home.bin / "older")) == ()


def test_a_key_of_the_shell_that_the_daemon_lacks_is_named_with_the_way_to_its_file(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    install(home.bin, "claude", "systemctl")
    home.environ["ANTHROPIC_API_KEY"] = "sk-secret"
    path = {"PATH": str(home.bin)}
    found = told(look_at_programs(home.machine(), PROGRAMS, path, is_service=True))
    [(level, what, fix)] = [one for one in found if "claude" in one[1]]
    assert level == "warning"
    assert "ANTHROPIC_API_KEY is set in this shell, but not" in what
    assert "sk-secret" not in what + fix
    environ = {**home.environ, "PATH": f"{home.bin}:/usr/bin:/bin"}
    assert subprocess.run(["sh", "-c", fix], env=environ, check=False).returncode == 0
    env_file = home.config.parent / "env"
    assert env_file.read_text() == "ANTHROPIC_API_KEY=sk-secret\n"
    assert env_file.stat().st_mode & 0o777 == 0o600
    by_hand = told(look_at_programs(home.machine(), PROGRAMS, path, is_service=False))
    assert [one[2] for one in by_hand if "claude" in one[1]] == ["fallbackd-client service restart"]


def test_a_key_that_the_daemon_lacks_is_named_where_its_environment_cannot_be_seen(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    install(home.bin, "claude")
    home.environ["ANTHROPIC_API_KEY"] = "sk-secret"
    for reason, is_named in ("auth", True), ("rate_limit", False), (None, False):
        health = {"claude": {"reason": reason}}
        environ = presumed_environ(home.machine(), PROGRAMS, health) | {"PATH": str(home.bin)}
        found = told(look_at_programs(home.machine(), PROGRAMS, environ, is_service=True))
        assert any("ANTHROPIC_API_KEY is set in" in one[1] for one in found) is is_named


def test_a_login_by_file_goes_before_a_key_of_the_shell(tmp_path: Path) -> None:
    home = Home(tmp_path)
    install(home.bin, "claude")
    home.environ["ANTHROPIC_API_KEY"] = "sk-secret"
    home.write(home.path / ".claude" / ".credentials.json", "{}")
    path = {"PATH": str(home.bin)}
    found = told(look_at_programs(home.machine(), PROGRAMS, path, is_service=True))
    assert not [one for one in found if "claude" in one[1]]


def test_an_environment_file_that_has_changed_since_the_start_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(home.config.parent / "env", '# keys\nA_KEY="1"\nB_KEY=2\nPATH=/bin\n')
    running = {"A_KEY": "1", "PATH": "/bin", "B_KEY": "old"}
    look = look_at_env_file
    [(level, what, fix)] = told(look(home.machine(), running, is_service=True))
    assert (level, fix) == ("warning", "systemctl --user restart fallbackd.service")
    assert what.endswith("has changed since the service was started: B_KEY")
    assert look(home.machine(), {**running, "B_KEY": "2"}, is_service=True) == []
    assert look(home.machine(), running, is_service=False) == []
