"""
What an agent must not do, tried from inside of one at every door of the daemon, in every state
that work can be in; and the same by a person, who may.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.acceptance.test_questions import court
from tests.support import attempts
from tests.support.agents import THROTTLED, backend_script, ok
from tests.support.attempts import HANDS, Attempt
from tests.support.daemon import HANG_S, Daemon
from tests.support.gateway import Gate, gate

from fallbackd.transports.process.runner.landlock import WHOLE_ABI, kernel_abi

IS_CONFINED = kernel_abi() >= WHOLE_ABI
SECRETS = {name: f"value-of-{name}" for name in attempts.SECRETS}
SECRETS["FALLBACKD_SHARE_URL"] = "redis://u:value-of-share@127.0.0.1:9/0"
CONFIG = """
[backends.paid]
kind = "openai-http"
base_url = "{url}/v1"
model = "m"
cost = "metered"
credentials = [
  { label = "one", env = "KEY_OF_ANOTHER" },
  { label = "two", file = "~/.keys/other" },
]
[share]
url_env = "FALLBACKD_SHARE_URL"
group_secret_env = "SHARE_GROUP_SECRET"
"""
WAITS = 'echo begun; while [ -e "$HOME/wait" ]; do sleep 0.05; done'
WORK = {"prompt": "x", "wait": "finished"}
BEGUN = {"prompt": "x", "wait": "accepted"}

Way = list[tuple[str, dict[str, Any]]]
WAYS: dict[str, Way] = {
    "one-level-below": [("delegate", {**WORK, "backend": "agent"})],
    "two-levels-below": [("delegate", {**WORK, "backend": "one-level-below"})],
    "three-levels-below": [("delegate", {**WORK, "backend": "two-levels-below"})],
    "after-a-move": [("delegate", {**WORK, "backend": "failing", "chain": ["failing", "agent"]})],
    "after-a-retry": [
        ("delegate", {**WORK, "backend": "agent"}),
        ("delegation.retry", {"delegation": "#0"}),
        ("delegation.wait", {"delegation": "#1"}),
    ],
    "after-a-reply": [
        ("delegate", {**WORK, "backend": "agent"}),
        ("delegation.reply", {"delegation": "#0", "prompt": "y"}),
        ("delegation.wait", {"delegation": "#1"}),
    ],
    "after-a-queue": [
        ("delegate", {**BEGUN, "backend": "slow", "session": "q"}),
        ("delegate", {**BEGUN, "backend": "agent", "session": "q"}),
        ("delegation.wait", {"delegation": "#1"}),
    ],
}
"""Calls from inside an agent, with the directory and permissions that it has, up to the hands."""


def config(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    hands = f"{sys.executable} -I {HANDS} {tmp_path}/table.json"
    bare = 'writable = []\nallow_env = ["GIVEN", "LD_PRELOAD"]\nretries = 0'

    def one(name: str, body: str) -> str:
        return backend_script(bin_dir, name, body, more=bare)

    return (
        CONFIG
        + one("agent", f"cat >/dev/null; {WAITS}; {hands}")
        + "".join(one(name, f'cat >/dev/null; {hands} --way "{name}"') for name in WAYS)
        + one("helper", ok("helped"))
        + one("slow", f"cat >/dev/null; {WAITS}; echo slept")
        + one("failing", THROTTLED)
        + backend_script(bin_dir, "free", ok("free"), more="confine = false\nwritable = []")
        + court(bin_dir)
        + backend_script(
            bin_dir, "kin", f"cat >/dev/null; {hands}", more=f'{bare}\nfamily = "claude"'
        )
        + '[roles.held]\nkind = "adversarial"\nchain = ["other", "kin"]\n'
        + 'must_differ_from = ["author"]\n'
    )


class Stage:
    """A daemon with work of a person, an open question, keys, logins and a gateway."""

    def __init__(self, g: Gate, tmp_path: Path) -> None:
        self.g, self.tmp_path = g, tmp_path
        self.home, self.work = g.daemon.home, g.daemon.work_dir
        self.values: dict[str, str] = {}

    @property
    def daemon(self) -> Daemon:
        return self.g.daemon

    async def prepare(self) -> None:
        for path in attempts.CLOSED_TO_WRITERS[:-4]:
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        for path in (".codex/auth.json", ".claude/.credentials.json", ".keys/other", ".bashrc"):
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text("secret")
        call, cwd = self.daemon.client.call, str(self.work)
        theirs = {**WORK, "backend": "helper", "session": "theirs", "cwd": cwd}
        done = await call("delegate", {**theirs, "request_id": "r-theirs"})
        await call("delegate", {**WORK, "role": "build", "session": "j"})
        judged = await call("delegate", {**WORK, "role": "judge", "session": "j"})
        self.values = {
            "@HOME@": str(self.home),
            "@STATE@": str(self.daemon.state_dir),
            "@WORK@": cwd,
            "@RUN@": str(self.daemon.runtime_dir / "fallbackd"),
            "@TOKEN@": self.g.token,
            "@THEIRS@": done["delegation"],
            "@QUESTION@": judged["question"]["question"],
        }
        (self.work / "link").symlink_to(self.daemon.state_dir)
        (self.work / "ssh").symlink_to(self.home / ".ssh")

    def table(self, tried: Mapping[str, Attempt], permissions: str = "read") -> Path:
        own = {"cwd": str(self.work), "permissions": permissions}
        ways = {
            name: [
                (method, {**own, **params} if method == "delegate" else params)
                for method, params in way
            ]
            for name, way in WAYS.items()
        }
        place = self.tmp_path / "table.json"
        return attempts.table(place, tried, self.values, port=self.g.port, ways=ways)

    async def delegate(self, **params: Any) -> dict[str, Any]:
        given = {"prompt": "x", "cwd": str(self.work), "failover": False, **params}
        found: dict[str, Any] = await self.daemon.client.call("delegate", given)
        return found

    async def text_of(self, begun: Mapping[str, Any]) -> str:
        name = {"delegation": begun["delegation"]}
        ended = await self.daemon.client.call("delegation.wait", name)
        assert ended["state"] == "succeeded", (ended["message"], self.daemon.log())
        return str(ended["text"])

    async def marks(self) -> object:
        """What an attempt that worked would have changed for a person."""
        call = self.daemon.client.call
        health = (await call("health", {"action": "list"}))["health"]
        (question,) = (await call("question.list"))["questions"]
        session = await call("session.get", {"session": "theirs"})
        return (
            {
                name: one["state"]
                for name, one in health.items()
                if name not in ("failing", "other")
            },
            question["question"],
            session["session"],
            (await call("daemon.ping"))["state"],
            self.g.api.calls("three"),
            {one: (self.home / one).read_text() for one in (".bashrc", ".keys/other")},
        )


@asynccontextmanager
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    defaults = "max_nesting = 3"
    more = config(tmp_path)
    async with gate(tmp_path, more=more, defaults=defaults, env=SECRETS) as g:
        one = Stage(g, tmp_path)
        await one.prepare()
        yield one


def tried_by(permissions: str) -> dict[str, Attempt]:
    found = {
        **attempts.of_persons(),
        **attempts.of_others(),
        **attempts.beyond(permissions),
        **attempts.of_the_gateway(),
        **attempts.of_the_environment(),
    }
    return found | (attempts.of_the_kernel() if permissions != "full" and IS_CONFINED else {})


def assert_refused(said: str, tried: Mapping[str, Attempt]) -> None:
    found = attempts.done(said)
    assert found.keys() == tried.keys(), said
    assert [name for name, word in found.items() if word == "done"] == []


def test_there_are_more_than_a_hundred_attempts() -> None:
    assert len(tried_by("workspace") | attempts.of_other_doors()) > 100


@pytest.mark.parametrize("permissions", ["read", "workspace", "full"])
async def test_no_attempt_from_inside_an_agent_succeeds_at_any_door(
    permissions: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as s:
        tried = {**tried_by(permissions), **attempts.of_other_doors()}
        s.table(tried)
        before = await s.marks()
        begun = await s.delegate(backend="agent", permissions=permissions, wait="accepted")
        assert_refused(await s.text_of(begun), tried)
        assert await s.marks() == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("permissions", ["read", "workspace"])
async def test_no_attempt_succeeds_from_work_that_an_agent_has_delegated(
    way: str, permissions: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as s:
        tried = tried_by(permissions)
        s.table(tried, permissions)
        before = await s.marks()
        is_queued = way == "after-a-queue"
        if is_queued:
            (s.home / "wait").touch()
        begun = await s.delegate(backend=way, permissions=permissions, wait="accepted")
        if is_queued:
            await until_state(s, "queued")
            (s.home / "wait").unlink()
        assert_refused(await s.text_of(begun), tried)
        assert await s.marks() == before


async def until_state(s: Stage, state: str) -> None:
    with anyio.fail_after(HANG_S):
        while not (await s.daemon.client.call("delegation.list", {"state": state}))["delegations"]:
            await anyio.sleep(0.02)


async def test_no_attempt_succeeds_when_the_daemon_was_started_anew(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        tried = tried_by("read")
        s.table(tried)
        before = await s.marks()
        (s.home / "wait").touch()
        begun = await s.delegate(backend="agent", permissions="read", wait="accepted")
        name = {"delegation": begun["delegation"]}
        with anyio.fail_after(HANG_S):
            while "begun" not in (await s.daemon.client.call("delegation.log", name))["text"]:
                await anyio.sleep(0.02)
        await s.daemon.kill()
        await s.daemon.start()
        (s.home / "wait").unlink()
        assert_refused(await s.text_of(begun), tried)
        assert await s.marks() == before


async def test_no_attempt_succeeds_from_work_that_was_held_for_a_question(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        tried = tried_by("read")
        s.table(tried)
        before, call = await s.marks(), s.daemon.client.call
        session = {"session": "h", "permissions": "read", "failover": True}
        await s.delegate(role="build", wait="finished", **session)
        held = await s.delegate(role="held", wait="finished", **session)
        assert held["state"] == "awaiting_answer", held["message"]
        answer = {"question": held["question"]["question"], "choice": "use:kin"}
        await call("question.answer", answer)
        assert_refused(await s.text_of(held), tried)
        assert await s.marks() == before


REACHED_BY_PERSONS = {
    *("see theirs", "wait for theirs", "read the log of theirs", "explain theirs"),
    *("see their session", "status of their session", "reply to theirs", "retry theirs"),
    *("hold a lease", "listen to all events", "answer a question", "config.get", "usage"),
    *("health pause", "health resume", "work as full", "work as full on what is free"),
    *("write ~/.bashrc", "write ~/.claude/settings.json", "read ~/.keys/other"),
    *("work at the login of codex", "open a key to all", "write beside the directory"),
}
"""A few at each door: the attempts above fail for who asks, not for how they are made."""


async def test_a_person_does_the_same(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        tried = {**tried_by("read"), **attempts.of_the_kernel()}
        place = s.table({name: tried[name] for name in tried if name in REACHED_BY_PERSONS})

        def run() -> str:
            line = [sys.executable, "-I", str(HANDS), str(place)]
            return subprocess.run(line, capture_output=True, text=True, check=True).stdout

        found = attempts.done(await anyio.to_thread.run_sync(run))
        assert found == dict.fromkeys(REACHED_BY_PERSONS, "done")
