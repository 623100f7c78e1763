import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.support.agents import program

from fallbackd.config.profiles import known_programs
from fallbackd_client import __version__
from fallbackd_client.cli.doctor.daemon import (
    START,
    Service,
    look_at_daemon,
    look_at_file,
    look_at_silence,
)
from fallbackd_client.errors import NoDaemon

HAND = Service()
UNITS = {
    "fallbackd.service": {"LoadState": "loaded", "ActiveState": "active", "MainPID": "7"},
}
RESTART = "systemctl --user restart fallbackd.service"


def status(health: dict[str, Any] | None = None, **daemon: Any) -> dict[str, Any]:
    return {
        "programs": known_programs(),
        "daemon": {"version": __version__, "pid": 7, "store": "sqlite", **daemon},
        "health": {"codex": {"state": "healthy"}} if health is None else health,
    }


def silence(home: Home, service: Service, cause: str) -> list[tuple[str, str, str]]:
    error = NoDaemon(cause, str(home.socket))
    return told(look_at_silence(home.machine(), service, error))


def test_a_daemon_that_is_well_is_well(tmp_path: Path) -> None:
    machine = Home(tmp_path).machine()
    assert told(look_at_daemon(machine, HAND, status())) == []
    assert told(look_at_daemon(machine, HAND, status(confinement="on"))) == []


@pytest.mark.parametrize(
    ("answer", "level", "words", "fix"),
    [
        (status(version="9.9"), "warning", "9.9", RESTART),
        (status(state="draining"), "warning", "drains", RESTART),
        (status(confinement="no: this kernel has no Landlock"), "note", "has no Landlock", ""),
        (status(kept_back=["GH_TOKEN"]), "note", 'allow_env = ["GH_TOKEN"]', ""),
        (status(store="sqlite: disk full", state_dir="/s"), "error", "disk full", "df -h /s"),
        (
            status(config_errors=[{"path": "a.b", "message": "no"}], config_path="/c.toml"),
            "error",
            "/c.toml is not in effect: a.b: no",
            "fallbackd-client config check",
        ),
        (
            status(config_warnings=[{"path": "", "message": "odd"}]),
            "warning",
            "odd",
            "fallbackd-client config check",
        ),
        (
            status({"a": {"state": "healthy"}, "codex": {"state": "broken", "reason": "auth"}}),
            "warning",
            "codex is logged out",
            "codex login",
        ),
        (
            status({"a": {"state": "healthy"}, "b": {"state": "broken", "reason": "crash"}}),
            "note",
            "b crashed",
            "fallbackd-client health clear b",
        ),
        (
            status(
                {
                    "a": {"state": "healthy"},
                    "b": {
                        "state": "broken",
                        "reason": "not_configured",
                        "source": "readiness",
                        "detail": "no key: K is not set",
                    },
                }
            ),
            "note",
            "b is not set up: no key: K is not set",
            "",
        ),
        (
            status(
                {
                    "a": {"state": "healthy"},
                    "codex": {"state": "broken", "reason": "not_configured", "detail": "version"},
                }
            ),
            "warning",
            "codex: its version and this fallbackd do not fit together",
            "npm install -g @openai/codex@latest && fallbackd-client health clear codex",
        ),
        (
            status(
                {
                    "a": {"state": "healthy"},
                    "mine": {"state": "broken", "reason": "not_configured", "detail": "version"},
                }
            ),
            "warning",
            "mine: its version",
            "fallbackd-client health get mine",
        ),
        (
            status({"a": {"state": "rate_limited"}, "b": {"state": "paused"}}),
            "error",
            "no backend can be used now",
            "fallbackd-client health",
        ),
    ],
)
def test_what_it_says_of_itself_becomes_a_finding(
    answer: dict[str, Any], level: str, words: str, fix: str, tmp_path: Path
) -> None:
    ((found_level, what, found_fix),) = told(
        look_at_daemon(Home(tmp_path).machine(), Service(UNITS), answer)
    )
    assert (found_level, found_fix) == (level, fix)
    assert words in what


def test_a_profile_that_is_built_in_and_not_set_up_is_no_finding(tmp_path: Path) -> None:
    lacks = {"state": "broken", "reason": "not_configured", "detail": "no Hermes server is set up"}
    answer = status({"a": {"state": "healthy"}, "hermes-api": lacks})
    assert look_at_daemon(Home(tmp_path).machine(), Service(UNITS), answer) == []


def test_programs_that_stay_are_told_with_what_they_hold(tmp_path: Path) -> None:
    one = {"program": "claude", "cwd": "/p", "state": "ready", "memory_bytes": 200 * 2**20}
    answer = {**status(), "residents": [one, {**one, "program": "codex", "memory_bytes": None}]}
    ((level, what, fix),) = told(look_at_daemon(Home(tmp_path).machine(), HAND, answer))
    assert (level, fix) == ("note", "fallbackd-client status")
    assert what.startswith("2 programs stay for a next prompt (claude, codex), and hold 200 MiB")


def test_what_troubles_the_daemon_is_told_with_its_own_command(tmp_path: Path) -> None:
    troubles = [
        {"kind": "exposed", "message": "seen by the doctor itself", "fix": "", "stops_work": True},
        {"kind": "shortage", "message": "few left", "fix": "free some", "stops_work": True},
        {"kind": "tmux", "message": "no tmux", "fix": "install it", "stops_work": False},
    ]
    found = told(look_at_daemon(Home(tmp_path).machine(), HAND, status(troubles=troubles)))
    assert found == [("error", "few left", "free some"), ("warning", "no tmux", "install it")]


def test_a_client_that_is_older_than_what_is_installed_is_the_one_to_renew(tmp_path: Path) -> None:
    home = Home(tmp_path)
    program(home.bin, "fallbackd", "echo fallbackd 9.9")
    ((_, _, fix),) = told(look_at_daemon(home.machine(), HAND, status(version="9.9")))
    assert fix.startswith("pipx install --force")


def test_a_program_of_the_users_own_backend_is_missed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    missing = {"state": "broken", "reason": "not_installed"}
    health = {
        "codex": {**missing, "detail": "codex is not on PATH"},
        "mine": {**missing, "detail": "my-agent is not on PATH"},
        "works": {"state": "healthy"},
    }
    ((level, what, fix),) = told(look_at_daemon(home.machine(), HAND, status(health)))
    assert (level, what) == ("warning", "mine cannot be used: my-agent is not on PATH")
    assert str(home.config) in fix
    program(home.bin, "my-agent", "exit 0")
    ((_, _, fix),) = told(look_at_daemon(home.machine(), Service(UNITS), status(health)))
    assert "PATH=%s" in fix


def test_nobody_there_is_told_how_to_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert silence(home, HAND, "missing")[0][2] == "fallbackd-client service start"
    ((level, _, fix),) = silence(home, Service(UNITS), "missing")
    assert (level, fix) == ("error", START)


def test_what_a_dead_daemon_left_is_named_in_the_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.private(home.socket.parent)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home.socket))
    lock = home.write(Path(f"{home.socket}.lock"), "1\n")
    ((level, what, fix),) = silence(home, HAND, "refused")
    assert level == "error"
    assert "left by a daemon that died" in what
    assert fix == f"rm {home.socket} {lock} && fallbackd-client service start"


def test_a_daemon_that_holds_the_state_and_listens_elsewhere_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    seen = home.write(home.state / "lock", "13\n").stat()
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}"
    home.below_root("/proc/locks", f"3: FLOCK  ADVISORY  WRITE 13 {device}:{seen.st_ino} 0 EOF")
    ((level, what, fix),) = silence(home, HAND, "missing")
    assert level == "error"
    assert "process 13" in what
    assert fix == "kill 13 && fallbackd-client service start"


def test_a_daemon_that_hangs_is_restarted(tmp_path: Path) -> None:
    ((level, _, fix),) = silence(Home(tmp_path), Service(UNITS), "timeout")
    assert (level, fix) == ("error", RESTART)


def test_a_daemon_that_does_not_come_up_is_told_from_one_that_hangs(tmp_path: Path) -> None:
    units = {"fallbackd.service": {"LoadState": "loaded", "ActiveState": "activating"}}
    ((level, what, fix),) = silence(Home(tmp_path), Service(units), "timeout")
    assert (level, fix) == ("error", START)
    assert "does not start" in what


def test_a_file_is_checked_by_the_daemons_own_program_where_none_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    own = program(home.bin, "fallbackd", "echo 'error: chains: is no table' >&2; exit 78")
    assert told(look_at_file(home.machine(), HAND)) == []
    home.write(home.config, "chains = 1")
    ((level, what, fix),) = told(look_at_file(home.machine(), HAND))
    assert level == "error"
    assert "chains: is no table" in what
    assert fix == f"{own} --config {home.config} --check-config"
