"""A redirect is neither followed nor handed on: the caller would take its token there."""

from pathlib import Path

import pytest
from tests.support.gateway import gate, last_event


@pytest.mark.parametrize("stream", [True, False])
async def test_the_next_backend_answers_in_place_of_one_that_redirects(
    tmp_path: Path, *, stream: bool
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "redirect")
        answer = await g.ask(stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-fallbackd-served-by"] == "two"


@pytest.mark.parametrize("mode", ["chat_completions", "messages"])
async def test_the_redirect_of_the_last_backend_becomes_an_error_of_our_own(
    tmp_path: Path, mode: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        for name in ("one", "two"):
            g.api.behave(name, "redirect")
        answer = await g.ask()
        assert answer.status_code == 503
        assert "location" not in answer.headers
        assert "redirects" in answer.json()["error"]["message"]


async def test_the_redirect_of_a_stored_answer_is_not_handed_on(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        made = await g.ask()
        g.api.behave("one", "ok", stored="redirect")
        name = last_event(made.text)["response"]["id"]
        for query in ("", "?stream=true"):
            answer = await g.client.get(
                f"/v1/responses/{name}{query}", headers={"x-api-key": g.token}
            )
            assert answer.status_code == 502
            assert "location" not in answer.headers
            assert "redirects" in answer.json()["error"]["message"]
