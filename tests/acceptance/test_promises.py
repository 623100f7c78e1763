"""What the answer of a method promises holds behind a `kill -9`, or is said not to."""

import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from tests.support.agents import THROTTLED, backend_script, chain, ok
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd_client.errors import RpcError
from fallbackd_client.wire.methods import METHODS

Json = Any  # of any method
SLOW = 'read -r x; echo "$x" >> "$HOME/begun"; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done'


class Scene(NamedTuple):
    """A daemon with something in every state that a method is about."""

    daemon: Daemon
    done: str
    running: str
    queued: str
    question: str
    standby: str

    async def call(self, method: str, params: Json) -> Json:
        return await self.daemon.client.call(method, params)

    async def state_of(self, delegation: str) -> str:
        return str((await self.call("delegation.get", {"delegation": delegation}))["state"])

    async def delegations(self) -> set[str]:
        return {
            one["delegation"] for one in (await self.call("delegation.list", {}))["delegations"]
        }

    def begun(self) -> list[str]:
        return (self.daemon.home / "begun").read_text().splitlines()

    @asynccontextmanager
    async def full_disk(self) -> AsyncIterator[None]:
        soft, hard = resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
        yield
        if self.daemon.process is not None:
            resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    bin_dir = tmp_path / "bin"
    config = (
        backend_script(bin_dir, "slow", SLOW)
        + backend_script(bin_dir, "limited", THROTTLED)
        + backend_script(bin_dir, "writer", ok("a text"), more='family = "claude"')
        + backend_script(bin_dir, "other", THROTTLED, more='family = "gpt"')
        + backend_script(bin_dir, "same", ok("a verdict"), more='family = "claude"')
        + '[roles.build]\nkind = "creative"\nchain = ["writer"]\n'
        + '[roles.judge]\nkind = "adversarial"\nchain = ["other", "same"]\n'
        + 'must_differ_from = ["author"]\n'
        + chain("limited", "writer")
    )
    async with running(tmp_path, config) as daemon:
        call = daemon.client.call
        work = {"prompt": "x\n", "wait": "finished"}
        await call("delegate", {**work, "backend": "limited", "session": "moved"})
        done = await call("delegate", {**work, "role": "build", "session": "s"})
        asking = await call("delegate", {**work, "role": "judge", "session": "s"})
        slow = {"prompt": "held\n", "backend": "slow", "wait": "accepted", "session": "t"}
        slow["orphan_s"] = 3600
        begun = await call("delegate", slow)
        queued = await call("delegate", {**slow, "prompt": "queued\n"})
        later = {"prompt": "x", "wait": "accepted", "session": "u", "when_available": True}
        later["not_before_at"] = time.time() + 3600
        standby = await call("delegate", {**later, "backend": "slow"})
        with anyio.fail_after(HANG_S):
            while not (daemon.home / "begun").exists():
                await anyio.sleep(0.02)
        yield Scene(
            daemon,
            done=done["delegation"],
            running=begun["delegation"],
            queued=queued["delegation"],
            question=asking["question"]["question"],
            standby=standby["delegation"],
        )
        for session in ("s", "t", "u"):
            await call("delegation.cancel", {"session": session})


class Promise(NamedTuple):
    params: Callable[[Scene], Json]
    holds: Callable[[Scene, Json], Awaitable[bool]]
    """With the answer of the method, by another life of the daemon."""


async def _is_known(play: Scene, answer: Json) -> bool:
    return answer["delegation"] in await play.delegations()


async def _is_cancelled(play: Scene, answer: Json) -> bool:
    return await play.state_of(play.queued) == "cancelled" and play.begun() == ["held"]


async def _is_paused(play: Scene, answer: Json) -> bool:
    return (await play.call("health", {}))["health"]["writer"]["state"] == "paused"


async def _is_answered(play: Scene, answer: Json) -> bool:
    return not (await play.call("question.list", {}))["questions"]


async def _is_forgotten(play: Scene, answer: Json) -> bool:
    with pytest.raises(RpcError, match="no session"):
        await play.call("session.get", {"session": "s"})
    return True


async def _has_no_hops(play: Scene, answer: Json) -> bool:
    return not (await play.call("session.get", {"session": "moved"}))["hops"]


async def _has_priority(play: Scene, answer: Json) -> bool:
    found = await play.call("delegation.get", {"delegation": play.standby})
    return bool(found["standby"]["priority"] == 7)


async def _is_not_followed(play: Scene, answer: Json) -> bool:
    return await play.state_of(play.running) == "running"


PROMISED: dict[str, Promise] = {
    "delegate": Promise(lambda _: {"prompt": "x", "backend": "writer"}, _is_known),
    "delegation.retry": Promise(lambda play: {"delegation": play.done}, _is_known),
    "delegation.reply": Promise(lambda play: {"delegation": play.done, "prompt": "y"}, _is_known),
    "delegation.cancel": Promise(lambda play: {"delegation": play.queued}, _is_cancelled),
    "delegation.keep": Promise(lambda play: {"delegation": play.running}, _is_not_followed),
    "delegation.standby": Promise(
        lambda play: {"delegation": play.standby, "priority": 7}, _has_priority
    ),
    "health": Promise(lambda _: {"action": "pause", "target": "writer"}, _is_paused),
    "question.answer": Promise(
        lambda play: {"question": play.question, "choice": "stop"}, _is_answered
    ),
    "session.end": Promise(lambda _: {"session": "s"}, _is_forgotten),
    "session.compacted": Promise(lambda _: {"session": "moved"}, _has_no_hops),
}


def test_every_method_that_promises_something_is_held_to_it() -> None:
    assert {one.name for one in METHODS if one.promises != "nothing"} == set(PROMISED)


@pytest.mark.parametrize("method", sorted(PROMISED))
async def test_what_was_answered_holds_behind_a_kill(tmp_path: Path, method: str) -> None:
    promise = PROMISED[method]
    async with scene(tmp_path) as play:
        if method == "session.end":  # not while it asks
            await play.call("question.answer", {"question": play.question, "choice": "stop"})
        answer = await play.call(method, promise.params(play))
        await play.daemon.kill()
        await play.daemon.start()
        assert await promise.holds(play, answer)


@pytest.mark.parametrize("method", sorted(PROMISED))
async def test_on_a_full_disk_no_method_says_done_of_what_a_kill_undoes(
    tmp_path: Path, method: str
) -> None:
    promise = PROMISED[method]
    async with scene(tmp_path) as play:
        before = await play.delegations()
        async with play.full_disk():
            with pytest.raises(RpcError) as refused:
                await play.call(method, promise.params(play))
            assert refused.value.kind == "store_unwritable"
            assert play.begun() == ["held"]
            if method == "health":  # what only looks promises nothing
                await play.call("health", {"action": "get", "target": "writer"})
            await play.daemon.kill()
        await play.daemon.start()
        assert await play.delegations() == before


async def test_what_could_not_be_kept_is_kept_when_there_is_room_again(tmp_path: Path) -> None:
    promise = PROMISED["health"]
    async with scene(tmp_path) as play:
        async with play.full_disk():
            with pytest.raises(RpcError, match="done, but cannot be put on record") as said:
                await play.call("health", promise.params(play))
            assert isinstance(said.value.data, dict)
            assert said.value.data["done"] is True
            assert await _is_paused(play, None)
        await play.call("health", {"action": "pause", "target": "same"})
        await play.daemon.kill()
        await play.daemon.start()
        assert await _is_paused(play, None)
