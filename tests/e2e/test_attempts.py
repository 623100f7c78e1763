"""What an agent must not do, tried by the shell of each real agent (`tests/support/attempts`)."""

import os
import sys
from pathlib import Path

import pytest
from tests.e2e.ordinary import CODE, NOBODY, give, python_for_all, python_of_all
from tests.e2e.scenes import BACKENDS, ROUTES, scene
from tests.e2e.test_confinement import IS_CONFINED, allow_commands
from tests.support import attempts

IS_ROOT = os.geteuid() == 0
WORKSPACE = attempts.beyond("workspace")
AT_THE_DAEMON = {**attempts.of_persons(), **attempts.of_others(), **WORKSPACE}
TRIED = (
    *("answer a question", "health pause", "daemon.drain", "config.get", "usage"),
    *("see theirs", "cancel theirs", "reply to theirs", "cancel theirs by request"),
    *("work as full", "work in the state", "write at the keys of ssh", "write by a link"),
    *("work that is billed", "announce a server of opencode"),
    *("say as a hook that claude is out", "drained by an orphan", "client drain"),
)
WRITTEN = ("write ~/.bashrc", "write ~/.ssh/authorized_keys", "write ~/.local/bin/claude")


@pytest.mark.parametrize("is_ordinary", [False, True], ids=["same-user", "ordinary-user"])
@pytest.mark.parametrize("name", BACKENDS)
async def test_no_attempt_of_a_real_agent_succeeds(
    base: Path, name: str, *, is_ordinary: bool
) -> None:
    python = python_for_all() if is_ordinary else sys.executable
    wrapper = python_of_all(base) if is_ordinary else ()
    async with scene(base, wrapper=wrapper, more={"PYTHONPATH": CODE}) as s:
        allow_commands(s.home.path)
        (s.home.path / ".ssh").mkdir()
        (s.home.work / "ssh").symlink_to(s.home.path / ".ssh")
        other = "claude" if name == "codex" else "codex"
        s.provider.behave(ROUTES[other], "ok")
        theirs = await s.delegate(other, session="theirs", request_id="r-theirs")
        known = AT_THE_DAEMON | attempts.of_other_doors(python)
        tried = {one: known[one] for one in TRIED}
        if IS_CONFINED or name == "codex":
            tried |= {one: attempts.of_the_kernel()[one] for one in WRITTEN}
        values = {
            "@HOME@": str(s.home.path),
            "@STATE@": str(s.daemon.state_dir),
            "@WORK@": str(s.home.work),
            "@RUN@": str(s.daemon.runtime_dir / "fallbackd"),
            "@THEIRS@": theirs["delegation"],
            "@QUESTION@": f"{theirs['delegation']}.q1",
        }
        table = attempts.table(base / "table.json", tried, values)
        if is_ordinary:
            give(base)
        command = f"{python} -I {attempts.HANDS} {table} > tried.txt 2>&1"
        s.provider.behave(ROUTES[name], "tool", "ok", command=command)
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        written = s.home.work / "tried.txt"
        assert written.stat().st_uid == (NOBODY if is_ordinary and IS_ROOT else os.geteuid())
        said = written.read_text()
        found = attempts.done(said)
        assert found.keys() == tried.keys(), said
        assert [one for one, word in found.items() if word == "done"] == []
        if name != "codex":  # whose sandbox lets its commands reach no socket
            assert "not_permitted" in found.values(), said
        assert (await s.daemon.client.call("daemon.ping"))["state"] == "running"
