"""The log of opencode sessions: what is copied, and where to."""

import json
from pathlib import Path

import pytest

from fallbackd.app.opencode_log import DEFAULT, OpencodeLog, log_path
from fallbackd.config.fallback_file import LOGS, Fallbacks, read_fallbacks
from fallbackd.config.tables import Opencode


def test_what_is_about_sessions_is_copied_as_one_object_a_line(tmp_path: Path) -> None:
    log = OpencodeLog()
    log.write_to(str(tmp_path / "sessions.log"))
    for event in ("rescue.done", "daemon.started", "server.lost"):
        log(None, "info", {"event": event, "level": "info", "timestamp": "t"})
    lines = [json.loads(one) for one in (tmp_path / "sessions.log").read_text().splitlines()]
    assert lines == [
        {"ts": "t", "event": "rescue.done", "level": "info"},
        {"ts": "t", "event": "server.lost", "level": "info"},
    ]


def test_it_lies_where_the_configuration_says_then_where_an_imported_file_does(
    tmp_path: Path,
) -> None:
    home = str(tmp_path)
    assert log_path(Opencode(), None, home=home) is None
    assert log_path(Opencode(), Fallbacks(logging=False), home=home) is None
    assert log_path(Opencode(), Fallbacks(), home=home) == f"{home}/{DEFAULT}"
    imported = Fallbacks(log_path=f"{home}/{LOGS}/own.log")
    assert log_path(Opencode(), imported, home=home) == f"{home}/{LOGS}/own.log"
    assert log_path(Opencode(log_path="~/a.log"), imported, home=home) == f"{home}/a.log"


def test_it_never_lies_outside_of_the_home_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to(tmp_path)
    for path in ("/etc/x.log", "~/../x.log", "~/link/x.log"):
        assert log_path(Opencode(log_path=path), None, home=str(home)) is None


@pytest.mark.parametrize(
    "given",
    ["~/.bashrc", "~/own.log", f"~/{LOGS}/../../../.bashrc", f"~/{LOGS}/..", "~/.ssh/rc", "/etc/x"],
)
def test_a_file_that_agents_may_write_names_no_other_place_for_it(
    tmp_path: Path, given: str
) -> None:
    home = str(tmp_path)
    found = read_fallbacks(json.dumps({"logPath": given}), path="f.json", home=home)
    assert "must lie inside $HOME" in str(found.warnings[0])
    assert log_path(Opencode(), found, home=home) == f"{home}/{DEFAULT}"


def test_a_file_that_agents_may_write_may_name_the_log_in_its_directory(tmp_path: Path) -> None:
    home = str(tmp_path)
    text = json.dumps({"logPath": f"~/{LOGS}/own.log"})
    found = read_fallbacks(text, path="f.json", home=home)
    assert found.warnings == ()
    assert log_path(Opencode(), found, home=home) == f"{home}/{LOGS}/own.log"
