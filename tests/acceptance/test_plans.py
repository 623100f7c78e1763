"""Programs that are asked how much of their plan is used, where the configuration allows it."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support import agents
from tests.support.clock import ManualClock
from tests.support.daemon import InProcess, in_process

from fallbackd.engine.quota import ASK_EVERY_S, MAX_EVERY_S, PlanReads

CONFIG = '[quota]\nask = ["codex"]\n'
CODEX = """\
while read -r line; do
  case "$line" in *account/rateLimits/read*)
    echo asked >> "$HOME/asked"
    echo 'not JSON'
    echo '{"method":"configWarning"}'
    cat "$HOME/answer"
  esac
done
"""


def plan(used_percent: float) -> str:
    window = {"usedPercent": used_percent, "windowDurationMins": 300, "resetsAt": None}
    limits = {"limitId": "codex", "primary": window, "secondary": None}
    return json.dumps({"id": 2, "result": {"rateLimits": limits}}) + "\n"


class Asking:
    def __init__(self, daemon: InProcess, home: Path, clock: ManualClock) -> None:
        self._daemon, self._home, self._clock = daemon, home, clock
        self._reads = PlanReads(daemon.engine)

    def answers(self, text: str) -> None:
        (self._home / "answer").write_text(text)

    def log_in(self, at: float) -> None:
        login = self._home / ".codex" / "auth.json"
        login.parent.mkdir(exist_ok=True)
        login.write_text("{}")
        os.utime(login, (at, at))

    async def work(self) -> None:
        project = self._home / "project"
        project.mkdir(exist_ok=True)
        asked = {"prompt": "hi", "backend": "mine", "cwd": str(project), "wait": "finished"}
        done = await self._daemon.client.call("delegate", asked)
        assert done["state"] == "succeeded"

    async def after(self, seconds: float = 0.0) -> int:
        """Let time pass and look; how often the program was asked so far."""
        self._clock.advance(seconds)
        await self._reads.look()
        asked = self._home / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0

    async def limits(self) -> list[tuple[float, str]]:
        known = (await self._daemon.client.call("health"))["health"]["codex"]["limits"]
        return [(one["used_percent"], one["source"]) for one in known]


@asynccontextmanager
async def asking(tmp_path: Path, config: str = CONFIG) -> AsyncIterator[Asking]:
    agents.program(tmp_path / "bin", "codex", CODEX)
    config += agents.backend_script(tmp_path / "bin", "mine", agents.ok("hello"))
    clock = ManualClock()
    async with in_process(tmp_path, config, clock=clock) as daemon:
        yield Asking(daemon, tmp_path / "home", clock)


async def test_a_login_is_asked_every_ten_minutes_while_work_is_done(tmp_path: Path) -> None:
    async with asking(tmp_path) as codex:
        codex.log_in(at=1000)
        codex.answers(plan(63))
        assert await codex.after() == 0, "no work was done"
        await codex.work()
        assert await codex.after() == 1
        assert await codex.limits() == [(63.0, "asked")]
        codex.answers(plan(64))
        assert await codex.after(ASK_EVERY_S - 60) == 1
        assert await codex.after(ASK_EVERY_S) == 2
        assert await codex.limits() == [(64.0, "asked")]
        assert await codex.after(2 * 3600) == 2, "an hour without work"


async def test_a_program_that_knows_nothing_is_asked_less_and_less_until_its_login_changes(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as codex:
        codex.log_in(at=1000)
        codex.answers('{"id":2,"error":{"code":-32600,"message":"authentication required"}}\n')
        await codex.work()
        assert await codex.after() == 1
        assert await codex.after(ASK_EVERY_S * 1.5) == 1
        assert await codex.after(ASK_EVERY_S) == 2
        assert await codex.limits() == [], "not known is not unused"
        codex.log_in(at=2000)
        codex.answers(plan(5))
        assert await codex.after(ASK_EVERY_S) == 3
        assert await codex.limits() == [(5.0, "asked")]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "garbage\n",
        '{"id":2,"result":null}\n',
        '{"id":2,"result":{"rateLimits":{"limitId":"codex","primary":{"usedPercent":"much"}}}}\n',
        '{"id":2,"result":{"rateLimits":{"limitId":"codex_spark","primary":{"usedPercent":100,'
        '"windowDurationMins":300}}}}\n',
        '{"id":2,"result":{"rateLimits":{"primary":{"usedPercent":1e9,"windowDurationMins":300}}}}\n',
    ],
)
async def test_another_answer_gives_no_figure(tmp_path: Path, answer: str) -> None:
    async with asking(tmp_path) as codex:
        codex.log_in(at=1000)
        codex.answers(answer or "\n")
        if not answer:
            agents.program(tmp_path / "bin", "codex", "exit 0")
        await codex.work()
        await codex.after()
        assert await codex.limits() == []


async def test_the_answer_for_a_login_that_changed_meanwhile_is_dropped(tmp_path: Path) -> None:
    async with asking(tmp_path) as codex:
        codex.log_in(at=1000)
        codex.answers(plan(10))
        agents.program(tmp_path / "bin", "codex", 'touch "$HOME/.codex/auth.json"\n' + CODEX)
        await codex.work()
        assert await codex.after() == 1
        assert await codex.limits() == []


@pytest.mark.parametrize(
    "config",
    [
        "",
        CONFIG.replace("codex", "claude"),
        CONFIG + "[backends.codex]\nenabled = false\n",
        CONFIG + '[backends.codex]\ncommand = ["codex"]\n',
        CONFIG + '[backends.codex]\ncredentials = [{ label = "work", env = "KEY" }]\n',
    ],
)
async def test_other_programs_and_keys_are_not_asked(tmp_path: Path, config: str) -> None:
    async with asking(tmp_path, config) as codex:
        codex.log_in(at=1000)
        codex.answers(plan(10))
        await codex.work()
        assert await codex.after() == 0


async def test_without_a_login_there_is_nothing_to_ask(tmp_path: Path) -> None:
    async with asking(tmp_path) as codex:
        codex.answers(plan(10))
        await codex.work()
        assert await codex.after(MAX_EVERY_S) == 0
