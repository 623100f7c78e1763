"""The daemon as a service of a real user manager, at its worst moments."""

import json
import os
import signal
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import agents
from tests.support.saying import say
from tests.support.usermanager import HANG_S, CannotRun, UserManager, program, user_manager

pytestmark = pytest.mark.root

CALLERS = 4
KILLS = 5
CLIENTS = Path(__file__).with_name("user_clients.py")
SERVICE = "fallbackd.service"
SOCKET = "fallbackd.socket"


def backend(manager: UserManager, name: str, body: str) -> str:
    """A program of the user's, and the table that makes it a backend."""
    return agents.backend_script(manager.home / "bin", name, body)


def asked(manager: UserManager, method: str, **params: object) -> dict[str, Any]:
    done = manager.client("--json", "call", method, json.dumps(params))
    assert done.returncode == 0, done.stdout + done.stderr + manager.log()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_up_anew(manager: UserManager, former: int) -> bool:
    return manager.main_pid() not in (0, former) and (
        manager.show(SERVICE, "ActiveState") == "active"
    )


def test_a_machine_that_cannot_run_one_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="run these tests as root"), user_manager():
        raise AssertionError("it runs")


def test_the_first_caller_starts_it_and_the_socket_stays_the_managers() -> None:
    with user_manager() as manager:
        manager.install()
        manager.systemctl("enable", "--now", SOCKET)
        place = manager.outside(manager.socket)
        found = place.lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert found.st_uid == place.parent.stat().st_uid == manager.uid
        assert manager.show(SERVICE, "ActiveState") == "inactive"

        pong = asked(manager, "daemon.ping")
        assert pong["pid"] == manager.main_pid()
        assert manager.show(SERVICE, "ActiveState") == "active"
        assert manager.show(SERVICE, "StatusText") == "0 running"
        assert manager.show(SERVICE, "WatchdogUSec") == "30s"
        status = asked(manager, "status")
        assert status["daemon"]["socket"] == manager.socket

        manager.systemctl("stop", SERVICE)
        assert place.lstat().st_ino == found.st_ino, "what was handed over is not ours to unlink"
        assert asked(manager, "daemon.ping")["pid"] not in (0, pong["pid"])
        assert place.lstat().st_ino == found.st_ino
        assert manager.show(SERVICE, "NRestarts") == "0"

        manager.systemctl("stop", SOCKET, SERVICE)
        assert not os.path.lexists(place), "nobody is there to take a caller"


def test_whatever_was_acknowledged_is_answered_though_it_is_killed_five_times() -> None:
    with user_manager() as manager:
        manager.install(config=backend(manager, "slow", "cat >/dev/null; sleep 0.3; echo done"))
        manager.systemctl("enable", "--now", SOCKET)
        stop = manager.work_dir / "stop"
        tellings = [manager.home / f"caller-{number}.log" for number in range(CALLERS)]
        callers = [
            manager.start(
                "sh",
                "-c",
                'exec "$@" > "$0" 2>&1',
                str(telling),
                sys.executable,
                str(CLIENTS),
                manager.socket,
                telling.stem,
                str(stop),
            )
            for telling in tellings
        ]
        try:
            for kill in range(KILLS):
                before = len(told(tellings, "accepted"))
                manager.wait_for(
                    "more work", lambda before=before: len(told(tellings, "accepted")) > before + 3
                )
                former = manager.send(signal.SIGKILL)
                assert asked(manager, "daemon.ping")["pid"] != former, "the first try succeeds"
                manager.wait_for("a new daemon", lambda former=former: is_up_anew(manager, former))
                assert manager.show(SERVICE, "NRestarts") == str(kill + 1)
            stop.touch()
            for caller in callers:
                caller.wait(timeout=HANG_S)
        finally:
            for caller in callers:
                caller.kill()
                caller.communicate()
        texts = "\n".join(telling.read_text() for telling in tellings)
        assert [caller.returncode for caller in callers] == [0] * CALLERS, texts

        accepted = [one["delegation"] for one in told(tellings, "accepted")]
        ended = told(tellings, "ended")
        assert len(accepted) == len(set(accepted)), "no request was taken twice"
        assert sorted(accepted) == sorted(one["delegation"] for one in ended)
        ends = Counter((one["state"], one["detail"]) for one in ended)
        say(f"\nkilled {KILLS} times, {len(accepted)} acknowledged, ended: {dict(ends)}")
        assert set(ends) == {("succeeded", None)}, "the work outlives the daemon"
        kept = asked(manager, "delegation.list", limit=1000)["delegations"]
        assert {one["delegation"]: one["state"] for one in kept} == {
            one["delegation"]: one["state"] for one in ended
        }


def told(tellings: list[Path], what: str) -> list[dict[str, Any]]:
    """Only whole lines: the last may be on its way."""
    found = []
    for telling in tellings:
        text = telling.read_text() if telling.exists() else ""
        for line in text.rpartition("\n")[0].splitlines():
            one = json.loads(line)
            if one["what"] == what:
                found.append(one)
    return found


def test_the_watchdog_leaves_a_daemon_alone_that_works_and_ends_one_that_hangs() -> None:
    with user_manager() as manager:
        manager.install(service="WatchdogSec=2")
        manager.systemctl("enable", "--now", SOCKET)
        asked(manager, "daemon.ping")
        seen: set[str] = set()

        def has_pinged_three_times() -> bool:
            seen.add(manager.show(SERVICE, "WatchdogTimestampMonotonic"))
            return len(seen) > 3

        manager.wait_for("its pings", has_pinged_three_times)
        assert manager.show(SERVICE, "NRestarts") == "0"

        hung = manager.send(signal.SIGSTOP)
        manager.wait_for("a new daemon", lambda: is_up_anew(manager, hung))
        assert manager.show(SERVICE, "NRestarts") == "1"
        assert asked(manager, "daemon.ping")["pid"] == manager.main_pid()
        assert not list(manager.home.rglob("core*")), "nothing of its memory is left on disk"


def test_a_reload_takes_the_new_configuration_and_is_seen_by_the_manager() -> None:
    with user_manager() as manager:
        manager.install(config=backend(manager, "first", agents.ok("1")))
        manager.systemctl("enable", "--now", SOCKET)
        pid = asked(manager, "daemon.ping")["pid"]
        manager.write(".config/fallbackd/config.toml", backend(manager, "second", agents.ok("2")))
        manager.systemctl("reload", SERVICE)
        manager.wait_for(
            "the new configuration", lambda: "second" in asked(manager, "health")["health"]
        )
        manager.wait_for(
            "the end of the reload", lambda: manager.show(SERVICE, "ActiveState") == "active"
        )
        assert manager.main_pid() == pid

        before = manager.show(SERVICE, "StateChangeTimestampMonotonic")
        manager.send(signal.SIGHUP)
        manager.wait_for(
            "RELOADING=1 and READY=1",
            lambda: (
                manager.show(SERVICE, "StateChangeTimestampMonotonic") != before
                and manager.show(SERVICE, "ActiveState") == "active"
            ),
        )
        assert manager.main_pid() == pid


def test_a_bad_configuration_is_told_and_starts_no_loop() -> None:
    with user_manager() as manager:
        manager.install(config="this is no [ TOML")
        manager.systemctl("enable", "--now", SOCKET)
        status = asked(manager, "status")
        assert status["daemon"]["config_errors"]
        assert "configuration file is not in effect" in manager.show(SERVICE, "StatusText")
        assert manager.show(SERVICE, "NRestarts") == "0"
        assert manager.client("config", "check").returncode == 78


def test_a_place_that_cannot_be_used_is_not_tried_again_and_again() -> None:
    with user_manager() as manager:
        manager.install()
        manager.write(".local/state/fallbackd/other", "of somebody else").parent.chmod(0o755)
        manager.systemctl("start", SOCKET)
        begun = manager.run("systemctl", "--user", "start", SERVICE)
        assert begun.returncode != 0
        assert manager.show(SERVICE, "ActiveState") == "failed"
        assert manager.show(SERVICE, "ExecMainStatus") == "78"
        assert manager.show(SERVICE, "NRestarts") == "0"
        assert f"chmod 700 {manager.home}/.local/state/fallbackd" in manager.log()


def test_a_stop_lets_running_work_end_and_takes_no_more() -> None:
    with user_manager() as manager:
        gate = manager.work_dir / "gate"
        body = f"cat >/dev/null; while [ ! -e {gate} ]; do sleep 0.05; done; echo done"
        manager.install(config=backend(manager, "slow", body))
        manager.systemctl("enable", "--now", SOCKET)
        begun = asked(manager, "delegate", prompt="x", backend="slow", settle_s=1)
        assert begun["state"] == "running"
        stopping = manager.start("systemctl", "--user", "stop", SERVICE)
        try:
            manager.wait_for(
                "the drain", lambda: manager.show(SERVICE, "ActiveState") == "deactivating"
            )
            assert manager.show(SERVICE, "StatusText") == "draining, 1 running"
            gate.touch()
        finally:
            out, err = stopping.communicate(timeout=HANG_S)
        assert stopping.returncode == 0, out + err
        assert manager.show(SERVICE, "Result") == "success"
        found = asked(manager, "delegation.get", delegation=begun["delegation"])
        assert (found["state"], found["text"].strip()) == ("succeeded", "done")


COUNTS = "cat >/dev/null; n=0; while [ ! -e {gate} ]; do echo $((n += 1)); sleep 0.1; done"


def test_a_restart_leaves_running_work_to_the_next_daemon() -> None:
    with user_manager() as manager:
        gate = manager.work_dir / "gate"
        manager.install(config=backend(manager, "counts", COUNTS.format(gate=gate)))
        manager.systemctl("enable", "--now", SOCKET)
        begun = asked(manager, "delegate", prompt="x", backend="counts", settle_s=60)
        name, former = begun["delegation"], manager.main_pid()
        waiting = manager.start(program("fallbackd-client"), "--json", "wait", name)
        try:
            manager.systemctl("restart", SERVICE)
            assert manager.main_pid() not in (0, former)
            found = asked(manager, "delegation.get", delegation=name)
            assert found["state"] == "running"
            assert found["attempts"][0]["pid"] == begun["attempts"][0]["pid"]
            former = manager.send(signal.SIGKILL)
            manager.wait_for("a new daemon", lambda: is_up_anew(manager, former))
            seen = asked(manager, "delegation.log", delegation=name)["size_bytes"]
            manager.wait_for(
                "more lines",
                lambda: asked(manager, "delegation.log", delegation=name)["size_bytes"] > seen,
            )
            gate.touch()
        finally:
            out, err = waiting.communicate(timeout=HANG_S)
        assert waiting.returncode == 0, out + err
        done = json.loads(out)
        assert done["state"] == "succeeded"
        assert len(done["attempts"]) == 1
        assert done["attempts"][0]["exit_code"] == 0
        text = asked(manager, "delegation.log", delegation=name, max_bytes=10**6)["text"]
        lines = [int(line) for line in text.splitlines()]
        assert lines == list(range(1, len(lines) + 1)), "no line is lost or doubled"


def test_a_shutdown_with_its_work_stops_it_and_one_without_leaves_it() -> None:
    with user_manager() as manager:
        gate = manager.work_dir / "gate"
        manager.install(config=backend(manager, "counts", COUNTS.format(gate=gate)))
        manager.systemctl("enable", "--now", SOCKET)
        begun = asked(manager, "delegate", prompt="x", backend="counts", settle_s=60)
        name, former = begun["delegation"], manager.main_pid()
        asked(manager, "daemon.shutdown", stop_work=True)
        manager.wait_for("its end", lambda: manager.main_pid() != former)
        pid = begun["attempts"][0]["pid"]
        done = asked(manager, "delegation.get", delegation=name)
        assert (done["state"], done["attempts"][0]["state"]) == ("cancelled", "cancelled")
        assert not manager.outside(f"/proc/{pid}").exists()


def test_agents_may_do_what_their_user_may() -> None:
    """
    What hardens a service is inherited by all that it starts. Confinement, which takes the rights
    of set-user-id programs away, is another matter and off here.
    """
    with user_manager() as manager:
        body = "cat >/dev/null; grep -E '^(NoNewPrivs|Seccomp|Umask):' /proc/self/status; env"
        config = "[defaults]\nconfine = false\n" + backend(manager, "looks", body)
        manager.install(config=config)
        manager.systemctl("enable", "--now", SOCKET)
        done = asked(manager, "delegate", prompt="x", backend="looks", wait="finished")
        lines = done["text"].splitlines()
        assert [line.split() for line in lines[:3]] == [
            ["Umask:", "0022"],
            ["NoNewPrivs:", "0"],
            ["Seccomp:", "0"],
        ]
        names = {line.partition("=")[0] for line in lines[3:]}
        assert "PATH" in names
        assert not {n for n in names if n.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))}


SHEDS = """cat >/dev/null
echo $PPID > "$HOME/runner.pid"
(setsid env -i sh -c 'echo $$ > "$0/far.pid"; while :; do sleep 1; done' "$HOME" &)
echo begun
while :; do sleep 1; done"""

LOOKS = """cat >/dev/null
kill -0 "$(cat "$HOME/far.pid")" 2>/dev/null && echo beside it
echo looked"""


@pytest.mark.parametrize("is_daemon_killed", [False, True])
def test_a_child_that_shed_all_marks_is_ended_with_its_group_though_the_runner_was_killed(
    *, is_daemon_killed: bool
) -> None:
    with user_manager() as manager:
        config = backend(manager, "first", SHEDS) + backend(manager, "second", LOOKS)
        manager.install(config=config + agents.chain("first", "second"))
        manager.systemctl("enable", "--now", SOCKET)
        begun = asked(
            manager, "delegate", prompt="x", backend="first", wait="accepted",
            cwd=str(manager.work_dir),
        )  # fmt: skip
        far = manager.home / "far.pid"
        manager.wait_for("the child", lambda: far.exists() and far.read_text().strip() != "")
        if is_daemon_killed:
            former = manager.send(signal.SIGSTOP)
        runner = (manager.home / "runner.pid").read_text().strip()
        manager.run("kill", "-KILL", runner)
        if is_daemon_killed:
            manager.run("kill", "-KILL", str(former))
            manager.wait_for("the next daemon", lambda: is_up_anew(manager, former))
        ended = asked(manager, "delegation.wait", delegation=begun["delegation"], until="finished")
        alive = manager.run("kill", "-0", far.read_text().strip()).returncode == 0
        assert (ended["state"], ended["served_by"]) == ("succeeded", "second")
        assert ended["text"] == "looked"
        assert not alive
        manager.wait_for(
            "the end of the groups",
            lambda: not list(manager.outside("/sys/fs/cgroup").rglob("attempt-*")),
        )
