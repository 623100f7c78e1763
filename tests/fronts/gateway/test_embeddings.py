"""Embeddings and the older completions through the gateway."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.told import Answers, Gateway, Told, as_events, as_json, gateway, told_backend

from fallbackd.backends.passage import read_body
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import HttpRequest

SMALL, LARGE = "text-embedding-3-small", "text-embedding-3-large"
VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
    "model": SMALL,
    "usage": {"prompt_tokens": 5, "total_tokens": 5, "cost": 0.25},
}
GOOGLE = "gemini-embedding-001"
LIMITED = as_json({"error": {"message": "slow down", "type": "rate_limit"}}, 429, retry_after="600")
JSON = {"content-type": "application/json"}


def told(value: Any, status: int = 200) -> Answers:
    return lambda _: as_json(value, status)


def limited(_: HttpRequest) -> Told:
    return LIMITED


def having(name: str, *models: str, **options: Any) -> Any:
    return told_backend(name, options={"embeddings": models, **options})


async def embed(g: Gateway, model: str, **headers: str) -> Any:
    asked = {"model": model, "input": ["a text"], "encoding_format": "base64"}
    return await g.client.post("/v1/embeddings", json=asked, headers=headers)


async def test_a_backend_that_names_the_model_is_asked_for_its_vectors(tmp_path: Path) -> None:
    backends = told_backend("a"), having("b", LARGE, SMALL, api_mode="responses")
    async with gateway(tmp_path, *backends, answers={"b": told(VECTORS)}) as g:
        body = b'{"input" : "a text", "model":"text-embedding-3-small"}'
        answer = await g.client.post("/v1/embeddings", content=body, headers=JSON)
        assert answer.json() == VECTORS
        assert answer.headers["x-fallbackd-model"] == SMALL
        ((name, request),) = g.sent
        assert (name, request.url) == ("b", "http://127.0.0.1:1/b/embeddings")
        assert request.body == body
        record = g.engine.exchanges.newest(limit=1)[0]
        assert (record.usage.input_tokens, record.usage.cost_usd) == (5, 0.25)


async def test_a_limit_is_marked_and_leads_to_a_backend_that_has_the_same_model(
    tmp_path: Path,
) -> None:
    backends = having("a", SMALL), having("b", LARGE), having("c", f"openai/{SMALL}")
    answers: dict[str, Answers] = {"a": limited, "b": told(VECTORS), "c": told(VECTORS)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        for _ in range(2):
            answer = await embed(g, SMALL)
            assert answer.headers["x-fallbackd-served-by"] == "c"
        assert [name for name, _ in g.sent] == ["a", "c", "c"]
        assert g.bodies("c")[0]["model"] == f"openai/{SMALL}"
        assert list(g.marks().values()) == ["rate_limit"]
        verdicts = g.engine.exchanges.newest(limit=1)[0].steps[0].candidates
        assert {one.backend: one.verdict for one in verdicts}["b"] == "protocol"


async def test_vectors_of_another_model_replace_none_whatever_is_named(tmp_path: Path) -> None:
    first = told_backend("a", options={"embeddings": (SMALL, LARGE)}, fallback_model="other")
    backends = first, having("b", LARGE), told_backend("c")
    team = (Entry(backend=first.backend.id, model="writes"), "b", "c")
    missing = {"message": f"The model `{SMALL}` does not exist", "code": "model_not_found"}
    answers: dict[str, Answers] = {"a": told({"error": missing}, 400), "b": told(VECTORS)}
    async with gateway(tmp_path, *backends, answers=answers, team=team) as g:
        for model in ("team", "a", SMALL):
            assert (await embed(g, model)).status_code == 400
        assert {name for name, _ in g.sent} == {"a"}
        assert {one["model"] for one in g.bodies("a")} == {SMALL}
        g.sent.clear()
        answer = await embed(g, LARGE, **{"x-fallbackd-chain": "team"})
        assert answer.headers["x-fallbackd-served-by"] == "b"
        assert {one["model"] for _, one in [(n, json.loads(r.body)) for n, r in g.sent]} == {LARGE}
        answer = await embed(g, "unknown-model")
        assert answer.status_code == 404
        assert "embeddings of a backend" in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", [{}, {"data": []}, {"data": [{"embedding": []}]}, ["x"]])
async def test_an_answer_without_vectors_is_none(tmp_path: Path, value: Any) -> None:
    backends = having("a", SMALL), having("b", SMALL)
    async with gateway(tmp_path, *backends, answers={"a": told(value), "b": told(VECTORS)}) as g:
        assert (await embed(g, SMALL)).headers["x-fallbackd-served-by"] == "b"


async def test_a_host_without_embeddings_is_passed_over_and_not_marked(tmp_path: Path) -> None:
    backends = having("a", SMALL), having("b", SMALL)
    answers = {"a": told({"detail": "Not Found"}, 404), "b": told(VECTORS)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        assert (await embed(g, SMALL)).headers["x-fallbackd-served-by"] == "b"
        assert g.marks() == {}


async def test_a_parameter_of_embeddings_that_is_refused_is_repaired(tmp_path: Path) -> None:
    def answer(request: HttpRequest) -> Told:
        if "user" in json.loads(request.body):
            return as_json({"error": {"message": "Unsupported parameter: 'user'"}}, 400)
        return as_json(VECTORS)

    backend = having("a", SMALL, omit=("dimensions",), default={"temperature": 1})
    async with gateway(tmp_path, backend, answers={"a": answer}) as g:
        asked = {"model": SMALL, "input": "a", "user": "u", "dimensions": 8}
        found = await g.client.post("/v1/embeddings", json=asked)
        assert found.headers["x-fallbackd-repaired"] == "no dimensions, no user"
        assert g.bodies("a")[-1] == {"model": SMALL, "input": "a"}


async def test_googles_embeddings_name_the_model_of_the_backend_in_path_and_body(
    tmp_path: Path,
) -> None:
    one = told_backend("a", "google-http", options={"embeddings": (GOOGLE,)})
    single = {"embedding": {"values": [0.5]}, "usageMetadata": {"promptTokenCount": 3}}
    many = {"embeddings": [{"values": [0.5]}, {"values": [0.25]}]}
    answers: dict[str, Answers] = {"a": lambda one: as_json(many if "batch" in one.url else single)}
    async with gateway(tmp_path, one, answers=answers) as g:
        body = b'{"model": "models/gemini-embedding-001", "content":{"parts":[{"text":"a"}]}}'
        path = f"/v1beta/models/{GOOGLE}"
        answer = await g.client.post(f"{path}:embedContent", content=body, headers=JSON)
        assert answer.json() == single
        assert g.sent[0][1].body == body
        assert g.engine.exchanges.newest(limit=1)[0].usage.input_tokens == 3
        batch = b'{"requests":[{"model":"models/team","content":{}} , {"model":"models/team"}]}'
        answer = await g.client.post(
            "/v1beta/models/team:batchEmbedContents", content=batch, headers=JSON
        )
        assert answer.json() == many
        assert g.sent[1][1].body == batch.replace(b"models/team", f"models/{GOOGLE}".encode())
        urls = [request.url.rpartition("/")[2] for _, request in g.sent]
        assert urls == [f"{GOOGLE}:embedContent", f"{GOOGLE}:batchEmbedContents"]


async def test_embedding_models_are_listed_but_not_among_those_that_write(tmp_path: Path) -> None:
    google = told_backend("g", "google-http", options={"embeddings": (GOOGLE,)})
    async with gateway(tmp_path, having("a", SMALL), google) as g:

        async def listed(path: str) -> Any:
            return (await g.client.get(path)).json()

        names = [one["id"] for one in (await listed("/v1/models"))["data"]]
        assert {SMALL, GOOGLE} <= set(names)
        for_chat = await listed("/v1/models?api=chat_completions")
        assert SMALL not in [one["id"] for one in for_chat["data"]]
        found = await listed(f"/v1beta/models/{GOOGLE}")
        assert found["supportedGenerationMethods"] == ["embedContent", "batchEmbedContents"]


async def test_a_backend_that_has_embeddings_and_no_model_writes_nothing(tmp_path: Path) -> None:
    only = told_backend("a", model=None, options={"embeddings": (SMALL,)})
    async with gateway(tmp_path, only, answers={"a": told(VECTORS)}) as g:
        assert (await embed(g, SMALL)).status_code == 200
        asked = {"model": "gpt-9", "messages": []}
        assert (await g.client.post("/v1/chat/completions", json=asked)).status_code == 404
        assert len(g.sent) == 1


# --- the older completions ---------------------------------------------------------------------


def piece(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    value = {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


WHOLE = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": " world", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1},
}


async def test_a_completion_is_answered_by_the_next_backend_of_chat_completions(
    tmp_path: Path,
) -> None:
    backends = told_backend("a"), told_backend("b", options={"default": {"seed": 1}})
    answers: dict[str, Answers] = {"a": limited, "b": told(WHOLE)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        asked = {"model": "team", "prompt": "hello", "max_tokens": 3}
        answer = await g.client.post("/v1/completions", json=asked)
        assert answer.json() == WHOLE
        assert answer.headers["x-fallbackd-fallback-reason"] == "rate_limit"
        assert g.sent[1][1].url == "http://127.0.0.1:1/b/completions"
        assert g.bodies("b") == [{**asked, "model": "m-b", "seed": 1}]
        assert g.engine.exchanges.newest(limit=1)[0].usage.output_tokens == 1


@pytest.mark.parametrize("is_text", [False, True])
async def test_a_streamed_completion_that_breaks_off_fails_over_before_its_first_text(
    tmp_path: Path, is_text: bool
) -> None:
    whole = piece(" wor"), piece("ld"), piece("", "stop"), b"data: [DONE]\n\n"
    broken = as_events(piece(" half" if is_text else ""), is_cut=True)
    backends = told_backend("a"), told_backend("b")
    answers: dict[str, Answers] = {"a": lambda _: broken, "b": lambda _: as_events(*whole)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        asked = {"model": "team", "prompt": "hello", "stream": True}
        got = b""
        try:
            async with g.client.stream("POST", "/v1/completions", json=asked) as answer:
                async for data in answer.aiter_raw():
                    got += data
        except Exception:
            assert is_text
        if is_text:
            assert got.startswith(piece(" half"))
            assert b'"error"' in got
            assert b"[DONE]" not in got
        else:
            assert got == b"".join(whole)
            assert answer.headers["x-fallbackd-served-by"] == "b"


@pytest.mark.parametrize(
    ("asked", "is_single"),
    [({"prompt": "a"}, True), ({"prompt": ["a", "b"]}, False), ({"prompt": "a", "n": 2}, False)],
)
def test_a_list_of_prompts_has_several_answers(asked: dict[str, Any], is_single: bool) -> None:
    assert read_body(json.dumps(asked).encode()).is_single == is_single


async def test_a_server_without_completions_is_passed_over_and_not_marked(tmp_path: Path) -> None:
    backends = told_backend("a"), told_backend("b")
    answers = {"a": told({"detail": "Not Found"}, 404), "b": told(WHOLE)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        answer = await g.client.post("/v1/completions", json={"model": "team", "prompt": "x"})
        assert answer.headers["x-fallbackd-served-by"] == "b"
        assert g.marks() == {}
