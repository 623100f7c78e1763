"""What runs for a delegation ends with it: tools, loops, helper servers, what they leave."""

import secrets
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.e2e.processes import Process, appear, belongs_to, matching, runs
from tests.e2e.scenes import BACKENDS, ROUTES, Scene, scene
from tests.support.provider_frames import TEXT
from tests.support.saying import say

HANG_S = 240.0


def a_moment() -> str:
    """A time to sleep that no other process has."""
    return f"307.{secrets.randbelow(10**9):09d}"


def serves(s: Scene) -> Callable[[Process], bool]:
    """The private server of this scene."""
    wanted, home = runs("serve", "--hostname"), f"HOME={s.home.path}"
    return lambda process: wanted(process) and home in process.env


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_cancelled_delegation_leaves_no_tool_and_its_prompt_is_in_no_command_line(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        moment, word = a_moment(), f"pong-{secrets.token_hex(8)}"
        s.provider.behave(ROUTES[name], "tool", command=f"sleep {moment}")
        begun = await s.begin(name, prompt=f"say {word}", permissions="full")
        await appear(runs("sleep", moment))
        assert any(word in str(call.body) for call in s.provider.calls(ROUTES[name]))
        assert matching(lambda process: any(word in part for part in process.argv)) == []
        ended = await s.cancel(begun)
        assert matching(runs("sleep", moment)) == []
        assert matching(belongs_to(begun["delegation"])) == []
        assert ended["state"] == "cancelled", s.daemon.log()
        if name == "opencode":
            assert matching(serves(s)), "the server has other prompts to serve"
            s.provider.behave("opencode", "ok")
            assert (await s.delegate("opencode", permissions="full"))["text"] == TEXT


async def test_streams_that_end_without_an_end_are_seen_as_a_loop(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave("opencode", "truncated")
        done = await s.delegate("opencode", then="codex")
        first = done["attempts"][0]
        assert first["backend"] == "opencode"
        assert first["failure"]["reason"] == "stalled", first
        assert first["failure"]["detail"] == "loop"
        assert done["served_by"] == "codex", s.daemon.log()
        calls = len(s.provider.calls("opencode"))
        say(f"\nopencode, streams without an end: {calls} calls until it was stopped")
        assert calls < 200


async def test_the_private_server_ends_with_the_daemon_and_leaves_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        assert (await s.delegate("opencode"))["text"] == TEXT
        (server,) = matching(serves(s))
        (scratch,) = (word[7:] for word in server.env if word.startswith("TMPDIR="))
        assert Path(scratch).is_dir()
        assert Path(scratch).is_relative_to(s.daemon.state_dir)
        await s.daemon.client.call("daemon.shutdown")
        assert await s.daemon.wait() == 0
        assert matching(serves(s)) == []
        assert not Path(scratch).exists()
        assert list((s.home.path.parent / "tmp").glob("*.so")) == []


async def test_a_run_of_opencode_leaves_its_library_nowhere(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        done = await s.delegate("opencode-run")
        assert done["text"] == TEXT
        assert list((s.home.path.parent / "tmp").glob("*.so")) == []
        with anyio.fail_after(HANG_S):
            while left := list(s.daemon.state_dir.rglob("*.so")):
                assert left, "found above"
                await anyio.sleep(0.05)
