"""The text of an agent, followed word by word: late, over a killed daemon, after the end."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.agents import backend_script
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd_client.aio import AsyncClient
from fallbackd_client.calls import encode_call
from fallbackd_client.client import Client, Subscription
from fallbackd_client.errors import RpcError

WORDS = ["one", "two", "three", "four", "five", "six"]
END = "."
SPEAKER = 'cat >/dev/null; while read -r word && [ "$word" != . ]; do echo "$word"; done <words'
"""Says each word that is written into the pipe `words` of its directory, until `END`."""


class Script:
    """The other end of the pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # For both directions: it opens at once, and stays open whether or not the agent runs.
        self._pipe = os.open(path, os.O_RDWR)

    def say(self, *words: str) -> None:
        os.write(self._pipe, "".join(f"{word}\n" for word in words).encode())

    def close(self) -> None:
        os.close(self._pipe)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    (tmp_path / "work").mkdir()
    made = Script(tmp_path / "work" / "words")
    yield made
    made.close()


@asynccontextmanager
async def speaking(tmp_path: Path) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon, and a delegation whose agent waits for its words."""
    config = backend_script(tmp_path / "bin", "speaker", SPEAKER)
    async with running(tmp_path, config) as daemon:
        work = await daemon.client.delegate(
            "hi", backend="speaker", wait="accepted", cwd=str(daemon.work_dir)
        )
        with anyio.fail_after(HANG_S):
            yield daemon, work.delegation
            await daemon.client.cancel(work.delegation)


async def heard_of(client: AsyncClient, name: str, *, words: int | None = None) -> list[Any]:
    """The events of its text: until so many words were heard, or until its end."""
    heard: list[Any] = []
    async with aclosing(client.follow(name, kinds=["attempt.text"])) as events:
        async for event in events:
            heard.append(event)
            if words is not None and len(said(heard)) >= words:
                break
    return heard


def said(events: list[Any]) -> list[str]:
    return "".join(one.get("text", "") for one in events if one["kind"] == "attempt.text").split()


async def test_who_follows_late_hears_the_text_from_its_first_word(
    tmp_path: Path, script: Script
) -> None:
    async with speaking(tmp_path) as (daemon, name):
        script.say(*WORDS[:2])
        await heard_of(daemon.client, name, words=2)
        late = await heard_of(daemon.client, name, words=2)
        assert said(late) == WORDS[:2]
        assert late[0]["offset"] == 0
        script.say(*WORDS[2:])
        assert said(await heard_of(daemon.client, name, words=6)) == WORDS


async def test_a_follower_hears_each_word_once_over_a_killed_daemon(
    tmp_path: Path, script: Script
) -> None:
    async with speaking(tmp_path) as (daemon, name):
        script.say(*WORDS[:2])
        heard: list[Any] = []
        async with aclosing(daemon.client.follow(name, kinds=["attempt.text"])) as events:
            async for event in events:
                heard.append(event)
                if said(heard) == WORDS[:2]:
                    await daemon.kill()
                    script.say(*WORDS[2:4])  # while no daemon is there
                    await daemon.start()
                if said(heard) == WORDS[:4]:
                    script.say(*WORDS[4:], END)
        assert said(heard) == WORDS
        assert heard[-1]["kind"] == "delegation.ended"
        pieces = [one for one in heard if one["kind"] == "attempt.text"]
        ends = [one["offset"] + len(one["text"]) for one in pieces]
        assert [one["offset"] for one in pieces] == [0, *ends[:-1]]
        work = await daemon.client.wait(name)
        assert (work.text or "").split() == WORDS


async def test_a_word_of_an_answer_that_was_whole_before_the_daemon_came_back_is_heard(
    tmp_path: Path, script: Script
) -> None:
    async with speaking(tmp_path) as (daemon, name):
        script.say(*WORDS[:2])
        heard: list[Any] = []
        async with aclosing(daemon.client.follow(name, kinds=["attempt.text"])) as events:
            async for event in events:
                heard.append(event)
                if said(heard) == WORDS[:2]:
                    runner = (await daemon.client.call("delegation.get", {"delegation": name}))[
                        "attempts"
                    ][-1]["pid"]
                    await daemon.kill()
                    script.say(*WORDS[2:], END)
                    await _exited(runner)
                    await daemon.start()
        assert said(heard) == WORDS
        assert heard[-1]["kind"] == "delegation.ended"


async def _exited(pid: int) -> None:
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        await anyio.sleep(0.02)


async def test_the_text_of_a_delegation_that_has_ended_is_heard_and_then_its_end(
    tmp_path: Path, script: Script
) -> None:
    async with speaking(tmp_path) as (daemon, name):
        script.say(*WORDS, END)
        assert (await daemon.client.wait(name)).state == "succeeded"
        heard = await heard_of(daemon.client, name)
        assert said(heard) == WORDS
        assert [one["kind"] for one in heard][-1] == "delegation.ended"
        assert heard[-1]["state"] == "succeeded"

        def blocking() -> list[Any]:
            with Client(daemon.socket) as client:
                return list(client.follow(name, kinds=["attempt.text"]))

        assert said(await anyio.to_thread.run_sync(blocking)) == WORDS


async def test_text_is_sent_from_the_place_that_is_named(tmp_path: Path, script: Script) -> None:
    async with speaking(tmp_path) as (daemon, name):
        script.say(*WORDS, END)
        await daemon.client.wait(name)
        whole = await heard_of(daemon.client, name)
        subscription = Subscription(None, ["attempt.text", "delegation.ended"], None, name)
        subscription.take({"method": "event", "params": {**whole[0], "text": "one\ntwo\n"}})
        place = subscription.params()["text_since"]
        assert place == {"attempt": whole[0]["attempt"], "offset": len("one\ntwo\n")}
        reader, writer = await asyncio.open_unix_connection(daemon.socket)
        writer.write(encode_call(1, "events.subscribe", subscription.params()))
        lines = [json.loads(await reader.readline()) for _ in range(3)]
        writer.close()
        assert lines[0]["id"] == 1
        assert said([lines[1]["params"]]) == WORDS[2:]
        assert lines[2]["params"]["kind"] == "delegation.ended"


async def test_a_place_in_a_text_needs_a_delegation(tmp_path: Path, script: Script) -> None:
    async with speaking(tmp_path) as (daemon, _):
        place = {"attempt": "d0.1", "offset": 0}
        with pytest.raises(RpcError, match="needs `delegation`"):
            await daemon.client.call("events.subscribe", {"text_since": place})


async def test_a_delegation_that_does_not_exist_cannot_be_followed(
    tmp_path: Path, script: Script
) -> None:
    async with speaking(tmp_path) as (daemon, _):
        with pytest.raises(RpcError, match="no delegation"):
            await heard_of(daemon.client, "d0")


async def test_who_reads_only_at_the_end_gets_every_word_and_the_end(tmp_path: Path) -> None:
    body = "cat >/dev/null; seq 1 120000"
    wanted = [str(number) for number in range(1, 120001)]
    config = backend_script(tmp_path / "bin", "counter", body)
    async with running(tmp_path, config) as daemon:
        reader, writer = await asyncio.open_unix_connection(daemon.socket, limit=2**22)
        work = await daemon.client.delegate("hi", backend="counter", wait="accepted")
        follow = Subscription(None, ["attempt.text", "delegation.ended"], None, work.delegation)
        writer.write(encode_call(1, "events.subscribe", follow.params()))
        with anyio.fail_after(HANG_S):
            assert (await daemon.client.wait(work.delegation)).state == "succeeded"
            assert json.loads(await reader.readline())["id"] == 1
            heard: list[Any] = []
            while not heard or heard[-1]["kind"] == "attempt.text":
                heard.append(json.loads(await reader.readline())["params"])
        writer.close()
        assert said(heard) == wanted
        assert heard[-1]["kind"] == "delegation.ended"
