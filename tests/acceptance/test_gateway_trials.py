"""What shows that a backend works again, and what becomes of one that is taken away meanwhile."""

from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support.gateway import ENDS, Gate, gate

ALONE = {"x-fallbackd-chain": "one"}
"""What has been limited comes second; here it is the only one."""


async def count(g: Gate, model: str = "team") -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "say it"}]}
    return await g.client.post(
        "/v1/messages/count_tokens", json=body, headers={"x-api-key": g.token}
    )


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_backend_that_counts_no_tokens_is_passed_over_and_not_marked(
    tmp_path: Path, status: int
) -> None:
    async with gate(tmp_path, mode="messages") as g:
        g.api.behave("one", "ok", count_status=status)
        answer = await count(g)
        assert answer.status_code == 200
        assert answer.headers["x-fallbackd-served-by"] == "two"
        g.api.behave("two", "ok", count_status=status)
        assert (await count(g)).status_code == status
        for name in ("one", "two"):
            assert (await g.health(name))["state"] == "healthy"
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "one"


async def test_a_limit_on_counting_tokens_is_none_on_answers(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="messages") as g:
        g.api.behave("one", "ok", count_status=429)
        assert (await count(g)).headers["x-fallbackd-served-by"] == "two"
        assert (await g.health("one"))["state"] == "healthy"
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "one"


async def test_tokens_that_were_counted_do_not_show_that_a_model_answers(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="messages") as g:
        g.api.behave("one", "429", retry_after_s=2)
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "two"
        await g.unproven("one")
        before = await g.health("one")
        assert (await count(g, "one")).status_code == 200
        after = await g.health("one")
        assert (after["state"], after["unproven"]) == (before["state"], True)
        assert (await g.ask(**ALONE)).status_code == 429


async def test_others_ask_a_backend_whose_trial_has_begun_to_answer(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", "hang_mid", "ok", retry_after_s=2)
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "two"
        await g.unproven("one")
        async with g.client.stream(
            "POST", g.path(), json=g.body(), headers={"x-api-key": g.token, **ALONE}
        ) as trial:
            assert trial.headers["x-fallbackd-served-by"] == "one"
            assert (await g.ask(**ALONE)).status_code == 200
            assert (await g.health("one"))["state"] == "healthy"


async def test_a_trial_that_breaks_off_after_its_beginning_is_a_failure(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", "truncated", "ok", retry_after_s=2)
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "two"
        await g.unproven("one")
        with pytest.raises(httpx2.RemoteProtocolError):
            await g.ask(**ALONE)
        assert (await g.health("one"))["state"] == "rate_limited"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_whole_although_its_backend_was_removed_meanwhile(
    tmp_path: Path, *, stream: bool
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "slow", pause_s=0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(removed, g)
            answer = await g.ask(stream=stream)
        assert answer.status_code == 200
        assert not stream or ENDS["chat_completions"] in answer.text
        again = await g.ask(stream=stream)
        assert again.headers["x-fallbackd-served-by"] == "two"


async def test_the_next_backend_is_asked_although_the_first_was_removed_meanwhile(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, hold_s=2) as g:
        g.api.behave("one", "hang")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(removed, g)
            answer = await g.ask()
        assert answer.status_code == 200
        assert answer.headers["x-fallbackd-served-by"] == "two"


async def removed(g: Gate) -> None:
    """The first backend, when it has been asked."""
    await g.api.called("one")
    before, _, rest = g.daemon.config_path.read_text().partition("[backends.one]")
    text = before + "[backends.two]" + rest.partition("[backends.two]")[2]
    g.daemon.config_path.write_text(text.replace('team = ["one", "two"]', 'team = ["two"]'))
    await g.daemon.client.call("config.reload")
