"""Where a conversation stays, what moves it, and which model a mark is about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support.daemon import HANG_S
from tests.support.gateway import Gate, gate, read_into

S = {"x-fallbackd-session": "s"}
THIRD = """
[backends.three]
kind = "anthropic-http"
base_url = "{url}"
model = "claude-sonnet-4-5"
cost = "local"
"""


async def ask(g: Gate, model: str = "team", **headers: str) -> httpx2.Response:
    body = {**g.body(), "model": model}
    headers = {"authorization": f"Bearer {g.token}", **headers}
    return await g.client.post(g.path(), json=body, headers=headers)


async def served(g: Gate, model: str = "team", **headers: str) -> str:
    answer = await ask(g, model, **headers)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-fallbackd-served-by"])


async def test_a_conversation_stays_where_its_prompt_is_cached(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", "ok", retry_after_s=60)
        assert await served(g, **S) == "two"
        await g.daemon.client.call("health", {"action": "clear", "backend": "one"})
        assert await served(g, **S) == "two"
        assert await served(g, **{"x-fallbackd-session": "another"}) == "one"


async def test_calls_of_one_conversation_that_fail_at_once_are_all_answered_by_the_next(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, first="first_answer_s = 3") as g:
        g.api.behave("one", "hang")
        found: list[str] = []

        async def one_call() -> None:
            found.append(await served(g, **S))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one_call)
        assert found == ["two"] * 3
        assert len(g.api.calls("one")) == 3


@pytest.mark.parametrize(
    ("status", "message", "goes_on"),
    [
        (400, "Unknown parameter: 'foo'", "two"),
        (400, "This model's maximum context length is 8192 tokens", "two"),
        (400, "Your request was rejected by our safety system: content_policy_violation", None),
    ],
)
async def test_a_failure_of_the_request_alone_moves_no_conversation(
    tmp_path: Path, status: int, message: str, goes_on: str | None
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "ok", "refuse", "ok", status=status, message=message)
        assert await served(g, **S) == "one"
        answer = await ask(g, **S)
        assert answer.status_code == (400 if goes_on is None else 200)
        assert answer.headers.get("x-fallbackd-served-by") == goes_on
        assert (await g.health("one"))["state"] == "healthy"
        assert await served(g, **S) == "one"


async def test_a_failure_that_goes_back_moves_no_conversation(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "ok", "refuse", "ok", message="Unknown parameter: 'foo'")
        assert await served(g, **S) == "one"
        assert (await ask(g, **{**S, "x-fallbackd-failover": "0"})).status_code == 400
        assert await served(g, **S) == "one"


async def test_consent_to_pay_is_given_with_each_call(tmp_path: Path) -> None:
    paid = {"x-fallbackd-allow-metered": "1"}
    async with gate(tmp_path, second_cost="metered") as g:
        g.api.behave("one", "refuse", "429", message="Unknown parameter: 'foo'", retry_after_s=60)
        refused = await ask(g, **{**S, **paid, "x-fallbackd-failover": "0"})
        assert refused.status_code == 400
        assert (await ask(g, **S)).status_code == 429
        assert (await ask(g, **S)).status_code == 402
        assert await served(g, **S, **paid) == "two"


async def test_the_name_of_a_model_is_bounded(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        answer = await ask(g, "m" * 257)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")
        assert (await ask(g, "team", **{"x-fallbackd-chain": "m" * 257})).status_code == 400
        assert g.api.calls("one") == []


async def test_each_model_of_a_conversation_is_answered_by_the_backend_that_has_it(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        for name in ("one", "two", "one"):
            assert await served(g, f"model-of-{name}", **S) == name


async def test_a_model_that_one_caller_misspells_takes_no_other_model_out(tmp_path: Path) -> None:
    chains = '"*" = ["three", "one"]'
    async with gate(tmp_path, mode="messages", more=THIRD, chains=chains) as g:
        g.api.behave("three", "404", "ok")
        # Its own model stands in for one that it does not have.
        assert await served(g, "claude-sonet-4-5") == "three"
        asked = [one.model for one in g.api.calls("three")]
        assert asked == ["claude-sonet-4-5", "claude-sonnet-4-5"]
        assert await served(g, "claude-sonnet-4-5") == "three"
        assert g.api.calls("three")[-1].model == "claude-sonnet-4-5"


async def test_two_models_of_one_backend_are_two_candidates(tmp_path: Path) -> None:
    chains = 'twice = ["one", { backend = "one", model = "another" }]'
    async with gate(tmp_path, chains=chains) as g:
        g.api.behave("one", "404", "ok")
        answer = await ask(g, "twice")
        assert answer.headers["x-fallbackd-model"] == "another"
        assert [one.model for one in g.api.calls("one")] == ["model-of-one", "another"]


@asynccontextmanager
async def under_way(g: Gate, **headers: str) -> AsyncIterator[None]:
    """A stream of the conversation has begun, and does not end."""
    got = bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(read_into, got, g, **S, **headers))
        with anyio.fail_after(HANG_S):
            while not got:
                await anyio.sleep(0.02)
        yield
        tasks.cancel_scope.cancel()


async def test_consent_of_one_call_lets_no_other_of_its_conversation_cost_money(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, second_cost="metered") as g:
        g.api.behave("one", "429", retry_after_s=3600)
        g.api.behave("two", "hang_mid")
        async with under_way(g, **{"x-fallbackd-allow-metered": "1"}):
            assert (await ask(g, **S)).status_code == 402
        assert len(g.api.calls("two")) == 1


async def test_what_one_call_has_tried_is_asked_by_another_of_its_conversation(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "503")
        g.api.behave("two", "hang_mid")
        async with under_way(g):
            await g.daemon.client.call("health", {"action": "clear"})
            g.api.behave("one", "ok")
            g.api.behave("two", "503")
            assert await served(g, **S) == "one"


async def test_calls_count_for_the_cap_of_an_hour_as_delegations_do(tmp_path: Path) -> None:
    async with gate(tmp_path, first="hourly_cap = 3") as g:
        assert [await served(g) for _ in range(5)] == ["one"] * 3 + ["two"] * 2
        assert (await g.health("one"))["reason"] == "local_budget"
        used = (await g.daemon.client.call("usage", {"backend": "one"}))["usage"]
        assert {(one["attempts"], one["successes"], one["failures"]) for one in used} == {(3, 3, 0)}


async def test_a_conversation_stays_with_one_account_of_its_backend(tmp_path: Path) -> None:
    keys = 'credentials = [{label = "k1", env = "K1"}, {label = "k2", env = "K2"}]'
    first = f'{keys}\ncredential_strategy = "round_robin"'
    env = {"K1": "key-one-0123456789", "K2": "key-two-0123456789"}
    async with gate(tmp_path, first=first, env=env) as g:
        for _ in range(3):
            assert await served(g, **S) == "one"
        assert len({one.credential for one in g.api.calls("one")}) == 1
        for _ in range(2):
            assert await served(g) == "one"
        assert len({one.credential for one in g.api.calls("one")}) == 2


async def test_the_roles_of_a_conversation_know_who_has_written_in_it(tmp_path: Path) -> None:
    roles = """
[backends.three]
kind = "anthropic-http"
base_url = "{url}"
model = "claude-sonnet-4-5"
cost = "local"
[roles.writer]
kind = "creative"
chain = ["one"]
[roles.critic]
must_differ_from = ["author"]
chain = ["one", { backend = "three", translate = true }]
"""
    async with gate(tmp_path, first='family = "gpt"', more=roles) as g:
        unknown = await ask(g, "critic", **S)
        assert unknown.status_code == 409
        assert "must_differ_from" in unknown.text
        assert await served(g, "writer", **S) == "one"
        assert await served(g, "critic", **S) == "three"


async def test_two_chains_of_one_conversation_go_their_own_ways(tmp_path: Path) -> None:
    chains = """
big = [{ backend = "one", model = "A" }, "two"]
small = [{ backend = "one", model = "B" }, "two"]
"""
    async with gate(tmp_path, chains=chains) as g:
        g.api.behave("one", "refuse", model="A", status=400, message="Unknown parameter: 'foo'")
        assert [await served(g, name, **S) for name in ("small", "big", "small")] == [
            *("one", "two", "one")
        ]
