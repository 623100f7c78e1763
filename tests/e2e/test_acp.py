"""Real agents that speak the Agent Client Protocol, as backends of the kind `acp`."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Struct
from tests.e2e import install
from tests.e2e.clis import KEY, build_home
from tests.e2e.processes import Process, appear, matching, runs
from tests.e2e.scenes import HANG_S, Scene
from tests.e2e.test_remembering import FIRST, SECOND
from tests.e2e.test_residents import leads
from tests.e2e.test_resumption import said
from tests.e2e.test_stopping import a_moment
from tests.support.daemon import running
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

SILENT = ("stalled",)
"""It tries again without a word, and the limit for the first answer ends it."""


class Agent(Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    fails: Mapping[str, tuple[str, ...]]
    """Reasons of a failure, where it is not silent about it."""
    rests: bool = True
    """What it starts late does not cost it its place."""


FAILURES = ("401", "429", "500", "quota", "hang", "reset_mid")
AGENTS = {
    "copilot": Agent(
        command=("copilot", "--acp"),
        fails={
            "401": ("auth",),
            "429": ("rate_limit",),
            "500": ("server_error",),
            "reset_mid": ("network",),
        },
    ),
    "qwen": Agent(
        command=("qwen", "--acp", "--auth-type", "openai"),
        fails={"401": ("auth",), "reset_mid": ("network",)},
        rests=False,
    ),
    "kimi": Agent(command=("kimi", "acp"), fails={"401": ("auth",), "quota": ("empty_result",)}),
}
each_agent = pytest.mark.parametrize("name", AGENTS)


def settings(name: str, home: Path, served: Provider) -> dict[str, str]:
    """Write what its user has set, and return the variables."""
    url = f"{served.url(name)}/v1"
    match name:
        case "copilot":
            return {
                "COPILOT_PROVIDER_BASE_URL": url,
                "COPILOT_PROVIDER_API_KEY": KEY,
                "COPILOT_MODEL": "m",
                "COPILOT_OFFLINE": "true",
            }
        case "qwen":
            return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "OPENAI_MODEL": "m"}
        case "kimi":
            place = home / ".kimi-code" / "config.toml"
            place.parent.mkdir()
            place.write_text(
                f"""\
default_model = "scripted/m"
[providers.scripted]
type = "openai"
base_url = {json.dumps(url)}
api_key = {json.dumps(KEY)}
[models."scripted/m"]
provider = "scripted"
model = "m"
max_context_size = 128000
"""
            )
            return {"KIMI_DISABLE_TELEMETRY": "1"}
        case _:
            raise ValueError(f"no such agent: {name}")


@asynccontextmanager
async def scene(
    tmp_path: Path, name: str, *, residents: int = 2, **knobs: Any
) -> AsyncIterator[Scene]:
    assert install.is_installed(install.AGENTS), "run `make e2e`"
    with anyio.fail_after(2 * HANG_S):
        async with provider() as served:
            home = build_home(tmp_path, served, names=())
            own = settings(name, home.path, served)
            path = os.pathsep.join((str(install.AGENTS.bin), home.env["PATH"]))
            env = {**home.env, **own, "PATH": path}
            lines = ["[defaults]", f"residents = {residents}", 'shell = "confined"']
            lines += [f"[backends.{name}]", 'kind = "acp"', "enabled = true", "retries = 0"]
            lines += [f"command = {json.dumps(AGENTS[name].command)}"]
            lines += [f"allow_env = {json.dumps(sorted(own))}"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in knobs.items()]
            async with running(tmp_path, "\n".join(lines), env=env) as daemon:
                yield Scene(provider=served, daemon=daemon, home=home)


def resting(s: Scene) -> list[int]:
    """The agents of this scene that lead a session of their own."""

    def is_one(process: Process) -> bool:
        stays = any(one.startswith("FALLBACKD_ATTEMPT=resident:") for one in process.env)
        return stays and f"HOME={s.home.path}" in process.env and leads(process.pid)

    return [one.pid for one in matching(is_one)]


@each_agent
async def test_the_second_prompt_of_a_session_goes_to_the_same_process(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path, name) as s:
        found: set[int] = set()
        for prompt in (FIRST, SECOND):
            done = await s.delegate(name, prompt=prompt, session="talk")
            assert (done["state"], done["text"]) == ("succeeded", TEXT), (done, s.daemon.log())
            found |= {*resting(s)}
        assert len(found) == 1 or not AGENTS[name].rests
        last = said(s.provider.calls(name, kind="main")[-1])
        assert last.index(FIRST) < last.index(TEXT) < last.index(SECOND)


@each_agent
async def test_a_session_goes_on_where_none_may_stay(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name, residents=0) as s:
        for prompt in (FIRST, SECOND):
            done = await s.delegate(name, prompt=prompt, session="talk")
            assert (done["state"], done["text"]) == ("succeeded", TEXT), (done, s.daemon.log())
        last = said(s.provider.calls(name, kind="main")[-1])
        assert last.index(FIRST) < last.index(TEXT) < last.index(SECOND)


@each_agent
async def test_a_tool_runs_by_the_permission(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name) as s:
        for permissions, runs_it in (("read", False), ("workspace", True)):
            made = s.home.work / permissions
            s.provider.behave(name, "tool", "ok", command=f"touch {made}", each_turn=True)
            done = await s.delegate(name, permissions=permissions)
            assert made.exists() is runs_it, (done, s.daemon.log())
            await s.forget_failures()
            if runs_it:
                assert (done["state"], done["text"]) == ("succeeded", TEXT), (done, s.daemon.log())


@each_agent
@pytest.mark.timeout(900)
async def test_a_failure_has_its_reason_in_time(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name, first_answer_s=20, timeout_s=60) as s:
        assert (await s.delegate(name, session="talk"))["text"] == TEXT, s.daemon.log()
        for failure in FAILURES:
            reasons = AGENTS[name].fails.get(failure, SILENT)
            s.provider.behave(name, failure, retry_after_s=3600)
            began = anyio.current_time()
            done = await s.delegate(name, session="talk")
            assert done["attempts"][0]["failure"]["reason"] in reasons, (failure, done)
            assert anyio.current_time() - began < 100
            await s.forget_failures()
        s.provider.behave(name, "ok")
        assert (await s.delegate(name, session="talk"))["text"] == TEXT, s.daemon.log()


@each_agent
async def test_a_cancelled_turn_leaves_no_tool(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name) as s:
        assert (await s.delegate(name, session="talk", permissions="full"))["text"] == TEXT
        before = resting(s)
        code = f"import time; time.sleep({a_moment()})"
        s.provider.behave(name, "tool", command=f"python3 -c '{code}'", each_turn=True)
        begun = await s.begin(name, session="talk", permissions="full")
        await appear(runs("python3", "-c", code))
        ended = await s.cancel(begun)
        assert ended["state"] == "cancelled", s.daemon.log()
        assert matching(runs("python3", "-c", code)) == []
        assert resting(s) == before or not AGENTS[name].rests
        s.provider.behave(name, "ok")
        assert (await s.delegate(name, session="talk", permissions="full"))["text"] == TEXT
