"""The doctor beside a real user manager: what it says fixes it, does."""

import json
import signal
from typing import Any

import pytest
from tests.support import agents
from tests.support.usermanager import UserManager, program, user_manager

pytestmark = pytest.mark.root

SERVICE = "fallbackd.service"
SOCKET = "fallbackd.socket"


def examined(manager: UserManager, *, status: int) -> list[dict[str, Any]]:
    done = manager.client("--json", "doctor", "--quiet")
    assert done.returncode == status, done.stdout + done.stderr + manager.log()
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def errors(manager: UserManager) -> list[dict[str, Any]]:
    return [one for one in examined(manager, status=1) if one["level"] == "error"]


def fix(manager: UserManager, finding: dict[str, Any]) -> None:
    done = manager.run("sh", "-c", finding["fix"])
    assert done.returncode == 0, f"{finding}\n{done.stderr}"


def agent_in_the_shell(manager: UserManager) -> None:
    """A program on the user's PATH alone, with a login of a kind."""
    agents.program(manager.home / "bin", "codex", agents.ok("done"))
    manager.write(".codex/auth.json", "{}")


def test_a_service_that_is_well_is_well() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install()
        manager.systemctl("enable", "--now", SOCKET)
        found = examined(manager, status=0)
        assert [one["fix"] for one in found] == ["loginctl enable-linger fbdtest"]


def test_a_program_that_the_service_does_not_find_is_found_after_the_command() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install()
        manager.write(".config/fallbackd/env", "PATH=/usr/bin:/bin\n", mode=0o600)
        manager.systemctl("enable", "--now", SOCKET)
        (finding, *_) = [one for one in errors(manager) if one["check"] == "programs"]
        assert str(manager.home / "bin" / "codex") in finding["what"]
        fix(manager, finding)
        assert [one["check"] for one in examined(manager, status=0)] == ["service"]


def test_a_socket_that_is_not_started_is_started_by_the_command() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install()
        found = errors(manager)
        assert {one["check"] for one in found} == {"daemon"}
        (disabled,) = [one for one in examined(manager, status=1) if "not enabled" in one["what"]]
        fix(manager, disabled)
        assert examined(manager, status=0)
        assert manager.show(SOCKET, "UnitFileState") == "enabled"


def test_a_service_that_has_failed_says_why_and_comes_back_by_its_commands() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install()
        state = manager.write(".local/state/fallbackd/other", "of somebody else").parent
        state.chmod(0o777)
        manager.systemctl("enable", "--now", SOCKET)
        manager.run("systemctl", "--user", "start", SERVICE)
        found = errors(manager)
        assert found[0]["fix"] == f"chmod 700 {state}"
        for finding in found:
            fix(manager, finding)
        assert manager.client("ping").returncode == 0
        assert [one["check"] for one in examined(manager, status=0)] == ["service"]


def test_a_daemon_that_hangs_is_told_from_one_that_is_not_there() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install()
        manager.systemctl("enable", "--now", SOCKET)
        assert manager.client("ping").returncode == 0
        manager.send(signal.SIGSTOP)
        (finding,) = errors(manager)
        assert "hangs" in finding["what"]
        fix(manager, finding)
        assert manager.client("ping").returncode == 0


def test_a_program_of_the_unit_that_is_gone_is_replaced() -> None:
    with user_manager() as manager:
        agent_in_the_shell(manager)
        manager.install(service="ExecStart=\nExecStart=/nowhere/fallbackd")
        own = manager.home / "bin" / "fallbackd"
        own.symlink_to(program("fallbackd"))
        manager.systemctl("enable", "--now", SOCKET)
        (finding, *_) = [one for one in errors(manager) if "/nowhere" in one["what"]]
        fix(manager, finding)
        # The drop-in of this test comes after the one that the command has written.
        (manager.home / ".config/systemd/user/fallbackd.service.d/test.conf").unlink()
        manager.systemctl("daemon-reload")
        for left in errors(manager):
            fix(manager, left)
        assert manager.client("ping").returncode == 0
