import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.client.gateway.listening import listening
from tests.support.agents import program

from fallbackd.config.profiles import known_programs
from fallbackd_client import __version__
from fallbackd_client.cli.main import main

STATUS: dict[str, Any] = {
    "programs": known_programs(),
    "daemon": {"version": __version__, "pid": 2**22 + 1, "store": "sqlite", "state": "running"},
    "health": {"codex": {"state": "healthy"}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With every program there, and nothing else."""
    home = tmp_path / "home"
    for name in ("claude", "codex", "gemini", "opencode", "numasec"):
        program(tmp_path / "bin", name, "exit 0")
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "auth.json").write_text("{}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    monkeypatch.setenv("GEMINI_API_KEY", "x")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "FALLBACKD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    tmp_path.chmod(0o700)
    return home


def test_a_machine_that_is_well_ends_in_0(run_cli: RunCli) -> None:
    ran = run_cli(["doctor", "--json"], {"status": STATUS})
    found = json.loads(ran.out)
    assert [one for one in found["findings"] if one["level"] == "error"] == []
    assert (ran.code, found["ok"]) == (0, True)
    assert set(found["checked"]) >= {"daemon", "service", "socket", "state", "programs"}


def test_nothing_is_said_of_the_environment_of_a_service_that_cannot_be_seen(
    tmp_path: Path, home: Path, run_cli: RunCli
) -> None:
    pid = STATUS["daemon"]["pid"]
    program(tmp_path / "bin", "systemctl", f"echo Id=fallbackd.service; echo MainPID={pid}")
    env_file = home / ".config" / "fallbackd" / "env"
    env_file.parent.mkdir(parents=True)
    env_file.write_text("OF_THE_SERVICE=x\n")
    daemon = {**STATUS["daemon"], "path": str(tmp_path / "bin")}
    ran = run_cli(["doctor", "--json"], {"status": {**STATUS, "daemon": daemon}})
    said = [one["what"] for one in json.loads(ran.out)["findings"]]
    assert not [one for one in said if "has changed since" in one]


def test_without_a_daemon_it_says_how_to_start_one_and_ends_in_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--quiet", "--socket", str(tmp_path / "none.sock")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("error    daemon: there is no daemon at")
    assert "\n         $ fallbackd-client service start\n" in out
    assert out.endswith("1 error\n")


def test_what_only_the_daemon_tells_is_not_called_well_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--socket", str(tmp_path / "none.sock"), "doctor"]
    assert main(argv) == 1
    lines = capsys.readouterr().out.splitlines()
    (well,) = [one for one in lines if one.startswith("OK: ")]
    unseen = ["programs", "gateway", "toolchains", "confinement"]
    assert not set(unseen) & set(well.removeprefix("OK: ").split(", "))
    assert f"Not looked at, as the daemon does not answer: {', '.join(unseen)}" in lines
    main([*argv, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["not_checked"] == unseen
    assert not set(found["checked"]) & set(unseen)
    # A daemon that is installed tells by a command which programs it knows.
    known = json.dumps(known_programs())
    program(tmp_path / "bin", "fallbackd", f"#!/bin/sh\necho '{known}'\n")
    main([*argv, "--json"])
    assert json.loads(capsys.readouterr().out)["not_checked"] == unseen[1:]


def test_a_program_that_asks_the_gateway_is_cut_off_without_the_daemon(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMINI_CLI_HOME", raising=False)
    argv = ["--socket", str(tmp_path / "none.sock"), "--json", "doctor"]
    settings = home / ".gemini" / ".env"
    settings.parent.mkdir()

    def found(port: int) -> list[dict[str, str]]:
        url = f"GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:{port}"
        settings.write_text(f"# fallbackd gateway: begin\n{url}\n")
        main(argv)
        findings = json.loads(capsys.readouterr().out)["findings"]
        return [one for one in findings if one["check"] == "gateway"]

    asked: list[str] = []
    with listening(models=[], asked=asked) as port:
        assert found(port) == []
    assert asked == []
    with socket.socket() as unused:  # nothing else gets the port meanwhile
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (cut,) = found(port)
    assert cut["level"] == "error"
    assert cut["what"] == (
        f"gemini asks the gateway, and nothing listens at port {port}: its calls fail until the"
        " daemon runs; to set it back: fallbackd-client gateway setup gemini --undo --yes"
    )


def test_findings_come_worst_first_each_with_its_command(run_cli: RunCli, home: Path) -> None:
    (home / ".codex" / "auth.json").unlink()
    state = home / ".local" / "state" / "fallbackd"
    state.mkdir(parents=True)
    state.chmod(0o777)
    ran = run_cli(["doctor", "--json"], {"status": STATUS})
    assert ran.code == 1
    found = json.loads(ran.out)["findings"]
    levels = [one["level"] for one in found]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert found[0]["fix"] == f"chmod 700 {state}"
    assert "codex login" in {one["fix"] for one in found}


def test_a_gateway_that_cannot_listen_is_one_error(run_cli: RunCli) -> None:
    said = "the gateway cannot listen at port 5: Permission denied (127.0.0.1)"
    troubles = [{"kind": "gateway", "message": said}]
    answers = {
        "status": {**STATUS, "daemon": {**STATUS["daemon"], "troubles": troubles}},
        "config.get": {"config": {"gateway": {"enabled": True, "port": 5}}},
    }
    ran = run_cli(["doctor", "--json"], answers)
    found = [one for one in json.loads(ran.out)["findings"] if said in one["what"]]
    assert found == [{"check": "gateway", "level": "error", "what": said, "fix": ""}]
    assert ran.code == 1


def test_quiet_leaves_out_what_is_only_good_to_know(run_cli: RunCli) -> None:
    broken = {"codex": {"state": "healthy"}, "b": {"state": "broken", "reason": "crash"}}
    answers = {"status": {**STATUS, "health": broken}}
    assert "b crashed" in run_cli(["doctor"], answers).out
    ran = run_cli(["doctor", "--quiet"], answers)
    assert "b crashed" not in ran.out
    assert ran.code == 0
