import json
import os
import tomllib
from pathlib import Path

import pytest
from tests.client.conftest import RunCli


def test_a_good_configuration_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["config", "check"], {"config.check": {"ok": True, "path": "/a.toml"}})
    assert (ran.code, ran.out) == (0, "/a.toml: good\n")
    assert ran.params("config.check") == {"directory": os.getcwd()}


def test_a_bad_one_ends_in_78_with_path_and_message(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = {
        "ok": False,
        "path": "x.toml",
        "errors": [{"path": "chains.a", "message": "is no list"}],
        "warnings": [{"path": "", "message": "odd"}],
    }
    ran = run_cli(["config", "check", "x.toml"], {"config.check": answer})
    assert ran.code == 78
    assert "error: chains.a: is no list\nwarning: file: odd\n" in ran.out
    assert ran.params("config.check") == {"path": str(tmp_path / "x.toml")}


def test_reload_says_whether_something_changed(run_cli: RunCli) -> None:
    ran = run_cli(
        ["config", "reload"],
        {"config.reload": {"changed": True, "warnings": [{"path": "a", "message": "b"}]}},
    )
    assert ran.out == "built-in configuration: changed\n"
    assert "warning: a: b" in ran.err


def test_show_prints_toml_and_says_what_the_file_does_not(run_cli: RunCli, tmp_path: Path) -> None:
    config = {
        "defaults": {"settle_s": 7.0, "confine": True, "tmux": None},
        "chains": {"a b": ["c", "d"]},
        "backends": {"x": {"command": ["sh", "-c", 'echo "é\n"'], "rules": [{"a": 1}]}},
    }
    file = tmp_path / "config.toml"
    file.write_text("[defaults]\nsettle_s = 7\n")
    answer = {"config.get": {"config": config, "path": str(file)}}
    ran = run_cli(["config", "show"], answer)
    shown = tomllib.loads(ran.out)
    assert shown.pop("defaults") == {"settle_s": 7.0, "confine": True}
    assert shown == {"chains": config["chains"], "backends": config["backends"]}
    assert "settle_s = 7.0\nconfine = true  # built-in\n" in ran.out


def test_only_check_takes_a_file(run_cli: RunCli) -> None:
    assert run_cli(["config", "show", "x.toml"], {}).code == 2


def test_a_key_without_its_value_is_named(run_cli: RunCli) -> None:
    ran = run_cli(["config", "set", "defaults.settle_s", "7", "defaults.confine"], {})
    assert ran.code == 2
    assert "defaults.confine has no VALUE" in ran.err


def test_a_file_that_cannot_be_written_is_one_sentence(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "/proc/fallbackd/config.toml"  # where even root makes nothing
    monkeypatch.setenv("FALLBACKD_CONFIG", config)
    answers = {"status": {"daemon": {"config_path": config}}, "config.check": {"ok": True}}
    ran = run_cli(["config", "set", "defaults.settle_s", "7"], answers)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"fallbackd-client: cannot write {config}: No such file or directory\n"
    ran = run_cli(["--json", "config", "set", "defaults.settle_s", "7"], answers)
    assert json.loads(ran.out)["error"]["message"] in ran.err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_value_is_set_in_the_form_that_the_file_has(
    run_cli: RunCli, tmp_path: Path, mark: str, end: str
) -> None:
    config = tmp_path / "config.toml"
    before = f"{mark}# mine{end}[defaults]{end}settle_s = 1{end}"
    config.write_bytes(before.encode())
    answers = {"status": {"daemon": {"config_path": str(config)}}, "config.check": {"ok": True}}
    ran = run_cli(["config", "set", "defaults.settle_s", "7"], answers)
    assert ran.code == 0, ran.err
    assert config.read_bytes().decode() == before.replace("1", "7")
    ran = run_cli(["config", "set", "defaults.wait_threshold_s", "3"], answers)
    assert ran.code == 0, ran.err
    assert config.read_bytes().decode() == before.replace("1", "7") + f"wait_threshold_s = 3{end}"


def test_a_pipe_in_the_place_of_the_file_is_an_error_at_once(
    run_cli: RunCli, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    os.mkfifo(config)
    ran = run_cli(
        ["config", "set", "defaults.settle_s", "7"],
        {"status": {"daemon": {"config_path": str(config)}}},
    )
    assert (ran.code, "it is a named pipe, not a file" in ran.err) == (2, True)
