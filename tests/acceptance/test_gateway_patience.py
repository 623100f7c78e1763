"""When the gateway waits for a backend, and when it has waited long enough."""

from pathlib import Path

import anyio
import pytest
from tests.support.gateway import gate


async def test_a_stated_moment_is_waited_for_at_the_same_backend_by_all(tmp_path: Path) -> None:
    async with gate(tmp_path, patience_s=5) as g:
        g.api.behave("one", "429", "ok", retry_after_s=1)
        served: list[str] = []

        async def ask() -> None:
            answer = await g.ask()
            assert answer.status_code == 200, answer.text
            served.append(answer.headers["x-fallbackd-served-by"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await g.api.called("one", 1)
            first = g.api.calls("one")[0]
            tasks.start_soon(ask)
        assert served == ["one", "one"]
        assert len(g.api.calls("one")) == 3
        assert all(one.monotonic_s - first.monotonic_s >= 0.9 for one in g.api.calls("one")[1:])
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"


async def test_a_longer_time_is_not_waited_for(tmp_path: Path) -> None:
    async with gate(tmp_path, patience_s=5) as g:
        g.api.behave("one", "429", "ok", retry_after_s=60)
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.headers["x-fallbackd-fallback-reason"] == "rate_limit"
        assert len(g.api.calls("one")) == 1


async def test_a_server_that_breaks_once_is_asked_again(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "500", "ok")
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "one"
        assert len(g.api.calls("one")) == 2
        assert g.api.calls("two") == []


async def test_it_is_not_where_the_host_has_spent_its_budget_for_further_calls(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, defaults="retry_share = 0\nretry_floor = 0") as g:
        g.api.behave("one", "500", "ok")
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert len(g.api.calls("one")) == 1


async def test_an_overloaded_server_is_left_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "503")
        for _ in range(3):
            answer = await g.ask()
            assert answer.headers["x-fallbackd-served-by"] == "two"
        assert len(g.api.calls("one")) == 1


@pytest.mark.parametrize("blip", ["502", "503", "529", "reset"])
async def test_the_only_backend_is_asked_again_after_a_blip(tmp_path: Path, blip: str) -> None:
    async with gate(tmp_path, chains='alone = ["one"]') as g:
        g.api.behave("one", blip, "ok")
        answer = await g.ask(**{"x-fallbackd-chain": "alone"})
        assert answer.status_code == 200, answer.text
        assert len(g.api.calls("one")) == 2
        assert (await g.health("one"))["state"] == "healthy"


async def test_silence_is_left_after_the_time_of_the_backend(tmp_path: Path) -> None:
    async with gate(tmp_path, first="first_answer_s = 1", hold_s=600) as g:
        for fault in ("hang", "pings"):
            g.api.behave("one", fault)
            await g.daemon.client.call("health", {"action": "clear"})
            answer = await g.ask()
            assert answer.headers["x-fallbackd-served-by"] == "two", fault


async def test_an_answer_in_one_piece_may_take_longer_than_a_first_word(tmp_path: Path) -> None:
    async with gate(tmp_path, first="first_answer_s = 1") as g:
        g.api.behave("one", "slow", pause_s=0.5)
        answer = await g.ask(stream=False)
        assert answer.headers["x-fallbackd-served-by"] == "one"
        assert (await g.health("one"))["state"] == "healthy"


async def test_an_answer_whose_connection_stays_open_ends_with_its_last_event(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "held")
        answer = await g.ask()
        assert answer.status_code == 200
        assert "[DONE]" in answer.text
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"


async def test_a_refusal_of_the_request_goes_back_and_no_other_is_asked(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave(
            "one",
            "refuse",
            status=400,
            message="Your request was rejected by our safety system: content_policy_violation",
        )
        answer = await g.ask()
        assert answer.status_code == 400
        assert "safety system" in answer.json()["error"]["message"]
        assert g.api.calls("two") == []
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"


async def test_callers_that_hang_up_on_a_silent_backend_have_the_next_one_asked(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, first="first_answer_s = 6") as g:
        g.api.behave("one", "hang")
        for number in range(3):
            with anyio.move_on_after(2.5):
                await g.ask(stream=number != 1)
        await g.until_state("one", "rate_limited", "broken")
        assert (await g.health("one"))["reason"] == "timeout"
        assert g.api.calls("two") == []
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.headers["x-fallbackd-fallback-reason"] == "timeout"
