"""Memory that long requests and held answers take together."""

import asyncio
import gzip
import json
from pathlib import Path

import anyio
import pytest
from tests.support.told import as_json, gateway, told_backend

from fallbackd.fronts.gateway import room, server
from fallbackd.fronts.gateway.patience import Bounds
from fallbackd.fronts.gateway.room import LONG_BYTES, Room

LONG = LONG_BYTES * room.COPIES + 1


async def test_long_requests_wait_for_room_in_turn() -> None:
    place = Room(8 * LONG)
    await place.take(6 * LONG)
    got: list[int] = []

    async def take(size: int) -> None:
        await place.take(size)
        got.append(size)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, 20 * LONG)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(take, LONG)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        place.give(6 * LONG)
        await anyio.wait_all_tasks_blocked()
        assert got == [20 * LONG], "one alone has all the room"
        place.give(20 * LONG)
    assert got == [20 * LONG, LONG]


async def test_a_short_request_does_not_wait_behind_long_ones() -> None:
    place = Room(8 * LONG)
    await place.take(6 * LONG)
    waiting = asyncio.create_task(place.take(LONG))
    await anyio.wait_all_tasks_blocked()
    await place.take(LONG_BYTES)
    assert not waiting.done(), "a quarter of the room is left to short ones"
    place.give(6 * LONG)
    await waiting


async def test_a_request_without_room_is_refused_and_leaves_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "ROOM_LIMIT_S", 0.0)
    place = Room(2 * LONG)
    await place.take(2 * LONG)
    with pytest.raises(TimeoutError):
        await place.take(2 * LONG)
    place.give(2 * LONG)
    await place.take(2 * LONG)


async def test_a_caller_that_leaves_while_room_is_given_back_takes_none() -> None:
    place = Room(4 * LONG)
    await place.take(4 * LONG)
    waiting = asyncio.create_task(place.take(3 * LONG))
    await anyio.wait_all_tasks_blocked()
    waiting.cancel()
    place.give(4 * LONG)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await place.take(4 * LONG)
    assert not place.takes(1)


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """400,000 are held at most, both copies counted."""
    monkeypatch.setattr(server, "Bounds", lambda: Bounds(max_memory_bytes=400_000))


WORDS = "word " * 25_000
"""Takes 250,000 bytes."""
ASKED = {"model": "team", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def answered(text: str) -> dict[str, object]:
    content = [{"type": "text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


@pytest.mark.usefixtures("few_bytes")
async def test_an_answer_without_room_is_refused_with_a_time_and_marks_nothing(
    tmp_path: Path,
) -> None:
    answers = {"a": lambda _: as_json(answered(WORDS))}
    backend = told_backend("a", "anthropic-http")
    long = {**ASKED, "messages": [{"role": "user", "content": WORDS}]}
    async with gateway(tmp_path, backend, answers=answers) as g:
        assert (await g.client.post("/v1/messages", json=ASKED)).status_code == 200
        answer = await g.client.post("/v1/messages", json=long)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "memory" in answer.json()["error"]["message"]
        assert g.marks() == {}
        for _ in range(3):  # what was taken is given back
            assert (await g.client.post("/v1/messages", json=ASKED)).status_code == 200


@pytest.mark.usefixtures("few_bytes")
async def test_a_packed_body_counts_as_it_is_unpacked(tmp_path: Path) -> None:
    long = {**ASKED, "messages": [{"role": "user", "content": WORDS}]}
    packed = gzip.compress(json.dumps(long).encode())
    said = iter(("said", WORDS))
    answers = {"a": lambda _: as_json(answered(next(said)))}
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with gateway(tmp_path, told_backend("a", "anthropic-http"), answers=answers) as g:
        found = [
            (await g.client.post("/v1/messages", content=packed, headers=headers)).status_code
            for _ in range(2)
        ]
        assert found == [200, 503]
