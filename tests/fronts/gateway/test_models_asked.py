"""The model that a backend is asked for, where it does not have the one that was wanted."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.told import Answers, Gateway, Told, as_json, gateway, told_backend

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import HttpRequest

MESSAGE = {
    "type": "message",
    "content": [{"type": "text", "text": "said"}],
    "stop_reason": "end_turn",
}
CHAT = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "said"}, "finish_reason": "stop"}
    ]
}


def having(*models: str) -> Answers:
    """A host that has these models alone."""

    def answer(request: HttpRequest) -> Told:
        model = json.loads(request.body)["model"]
        is_chat = request.url.endswith("/chat/completions")
        if model in models:
            return as_json(CHAT if is_chat else MESSAGE)
        if is_chat:
            missing = {
                "message": f"The model `{model}` does not exist or you do not have access to it.",
                "type": "invalid_request_error",
                "code": "model_not_found",
            }
            return as_json({"error": missing}, 404)
        error = {"type": "not_found_error", "message": f"model: {model}"}
        return as_json({"type": "error", "error": error}, 404)

    return answer


def failing(status: int) -> Callable[[HttpRequest], Told]:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    return lambda _: as_json({"type": "error", "error": error}, status)


async def ask(g: Gateway, model: str, path: str = "/v1/messages") -> tuple[int, str | None]:
    """Status, and the model that answered."""
    asked = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answer = await g.client.post(path, json=asked)
    return answer.status_code, answer.headers.get("x-fallbackd-model")


def models(g: Gateway, name: str) -> list[str]:
    return [one["model"] for one in g.bodies(name)]


async def test_the_fallback_model_stands_in_for_one_that_is_gone_and_is_not_marked(
    tmp_path: Path,
) -> None:
    backend = told_backend(
        "a", model="gone", fallback_model="spare", options={"api_mode": "chat_completions"}
    )
    async with gateway(tmp_path, backend, answers={"a": having("spare")}) as g:
        for _ in range(2):
            assert await ask(g, "team", "/v1/chat/completions") == (200, "spare")
        assert models(g, "a") == ["gone", "spare", "spare"]
        assert g.marks() == {"model:a/gone": "model_not_found"}


async def test_the_fallback_model_of_a_translated_backend_is_asked_in_its_own_words(
    tmp_path: Path,
) -> None:
    backend = told_backend(
        "a", model="gone", fallback_model="spare", options={"api_mode": "chat_completions"}
    )
    team = (Entry(backend=BackendId("a"), translate=True),)
    async with gateway(tmp_path, backend, answers={"a": having("spare")}, team=team) as g:
        assert await ask(g, "team") == (200, "spare")


async def test_a_model_of_a_caller_is_asked_for_under_the_name_that_the_host_has_for_it(
    tmp_path: Path,
) -> None:
    backends = (
        told_backend("a", "anthropic-http", model="claude-opus-4-1"),
        told_backend("b", "anthropic-http", model="anthropic/claude-opus-4.1"),
    )
    answers = {"a": failing(529), "b": having("anthropic/claude-sonnet-4.5")}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        assert await ask(g, "claude-sonnet-4-5") == (200, "anthropic/claude-sonnet-4.5")
        assert models(g, "a")[0] == "claude-sonnet-4-5"
        assert models(g, "b") == ["anthropic/claude-sonnet-4.5"]


async def test_a_host_without_the_model_of_a_caller_is_asked_for_its_own_one_once(
    tmp_path: Path,
) -> None:
    backends = (
        told_backend("a", "anthropic-http", model="claude-opus-4-1"),
        told_backend("b", "anthropic-http", model="vendor/claude-of-ours"),
    )
    answers = {"a": failing(529), "b": having("vendor/claude-of-ours")}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        for _ in range(2):
            assert await ask(g, "claude-haiku-4-5") == (200, "vendor/claude-of-ours")
        assert models(g, "b") == ["vendor/claude-haiku-4.5", *["vendor/claude-of-ours"] * 2]
        assert g.marks()["model:b/vendor/claude-haiku-4.5"] == "model_not_found"


async def test_a_limit_of_the_model_of_a_caller_does_not_lead_to_another_model(
    tmp_path: Path,
) -> None:
    backends = (
        told_backend("a", "anthropic-http", model="claude-opus-4-1"),
        told_backend("b", "anthropic-http", model="claude-sonnet-4-5"),
    )
    answers = {"a": failing(529), "b": having("claude-haiku-4-5")}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        assert await ask(g, "claude-haiku-4-5") == (200, "claude-haiku-4-5")
        assert set(models(g, "a")) == {"claude-haiku-4-5"}
        assert models(g, "b") == ["claude-haiku-4-5"]


def counting_nothing(request: HttpRequest) -> Told:
    """A host that has `spare` alone, and does not know the call that counts tokens."""
    is_count = request.url.endswith("count_tokens")
    return (failing(404) if is_count else having("spare"))(request)


async def test_a_fallback_model_is_asked_once_for_a_call_that_its_backend_does_not_know(
    tmp_path: Path,
) -> None:
    backend = told_backend("a", "anthropic-http", model="gone", fallback_model="spare")
    async with gateway(tmp_path, backend, answers={"a": counting_nothing}) as g:
        assert await ask(g, "team") == (200, "spare")
        assert (await ask(g, "team", "/v1/messages/count_tokens"))[0] == 404
        assert models(g, "a") == ["gone", "spare", "spare"]


async def test_behind_a_fallback_model_that_cannot_count_tokens_the_next_backend_counts_them(
    tmp_path: Path,
) -> None:
    backends = (
        told_backend("a", "anthropic-http", model="gone", fallback_model="spare"),
        told_backend("b", "anthropic-http"),
    )
    answers = {"a": counting_nothing, "b": lambda _: as_json({"input_tokens": 1})}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        assert await ask(g, "team") == (200, "spare")
        assert (await ask(g, "team", "/v1/messages/count_tokens"))[0] == 200
        assert models(g, "a") == ["gone", "spare", "spare"]
        assert models(g, "b") == ["m-b"]
