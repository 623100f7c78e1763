"""Requests whose form one backend refuses: changed there, asked again, and remembered."""

import gzip
import json
from pathlib import Path
from typing import Any

from msgspec import structs
from tests.support.told import Answers, Told, as_json, gateway, told_backend

from fallbackd.core.policy import Entry
from fallbackd.core.protocol import HttpRequest
from fallbackd.engine import feedback

CHAT = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "said"}, "finish_reason": "stop"}
    ]
}
BAD_SIGNATURE = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "messages.1.content.0: Invalid `signature` in `thinking` block",
    },
}
LIMITED = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}


def refused(message: str) -> Told:
    return as_json({"error": {"message": message, "type": "invalid_request_error"}}, 400)


def without(*names: str, also: dict[str, str] | None = None) -> Answers:
    """A provider that takes none of these fields, and says so one after the other."""

    def answer(request: HttpRequest) -> Told:
        body = json.loads(request.body)
        for name in names:
            if name in body:
                more = f" Use '{also[name]}' instead." if also and name in also else ""
                text = f"Unsupported parameter: '{name}' is not supported with this model.{more}"
                return refused(text)
        return as_json(CHAT)

    return answer


def message(*signatures: str, text: str = "said") -> dict[str, Any]:
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": one} for one in signatures]
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "content": [*thoughts, {"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def signing(own: str) -> Answers:
    """A vendor that takes only the reasoning that it has signed itself."""

    def answer(request: HttpRequest) -> Told:
        for said in json.loads(request.body)["messages"]:
            for block in said["content"] if isinstance(said["content"], list) else []:
                if block["type"] == "thinking" and not block["signature"].startswith(own):
                    return as_json(BAD_SIGNATURE, 400)
        return as_json(message(f"{own}-{len(json.loads(request.body)['messages'])}"))

    return answer


async def test_a_parameter_that_is_refused_is_left_out_and_not_sent_again(tmp_path: Path) -> None:
    names = {"max_tokens": "max_completion_tokens"}
    answers = {"a": without("max_tokens", "temperature", also=names)}
    body = b'{"model" : "team", "max_tokens":9 ,  "temperature":0.0,"seed":1.50}'
    async with gateway(tmp_path, told_backend("a"), answers=answers) as g:
        found = []
        for _ in range(2):
            answer = await g.client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 200, answer.text
            found.append(answer.headers["x-fallbackd-repaired"])
        assert found == ["max_tokens as max_completion_tokens, no temperature"] * 2
        assert len(g.sent) == 4
        repaired = b'{"model" : "m-a", "max_completion_tokens":9,"seed":1.50}'
        assert [request.body for _, request in g.sent[2:]] == [repaired] * 2
        assert g.marks() == {}
        record = g.engine.exchanges.newest(limit=2)[1]
        told = [one.text for one in record.steps if one.event == "Repaired"]
        assert told == [
            "a refused the form of the request; asked again with: "
            "max_tokens as max_completion_tokens",
            "a refused the form of the request; asked again with: no temperature",
        ]


async def test_parameters_are_changed_as_the_configuration_says_at_the_first_call(
    tmp_path: Path,
) -> None:
    own = {
        "omit": ("temperature",),
        "rename": {"max_tokens": "max_completion_tokens"},
        "default": {"reasoning_effort": "low", "seed": 1},
    }
    body = b'{"model" : "team", "max_tokens":9 ,  "temperature":0.0,"seed":1.50}'
    wanted = b'{"reasoning_effort":"low","model" : "m-a", "max_completion_tokens":9,"seed":1.50}'
    said = "max_tokens as max_completion_tokens, no temperature, reasoning_effort by default"
    async with gateway(
        tmp_path, told_backend("a", options=own), answers={"a": without("temperature")}
    ) as g:
        for _ in range(2):
            answer = await g.client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert answer.headers["x-fallbackd-repaired"] == said
        assert [request.body for _, request in g.sent] == [wanted] * 2
        steps = g.engine.exchanges.newest(limit=1)[0].steps
        assert f"a is asked with: {said}" in [one.text for one in steps]


async def test_a_parameter_of_google_is_changed_where_it_stands(tmp_path: Path) -> None:
    name = "generationConfig"
    own = {
        "omit": (f"{name}.topK",),
        "rename": {f"{name}.maxTokens": "maxOutputTokens"},
        "default": {f"{name}.seed": 7, "other.deep": 1},
    }
    whole = {
        "candidates": [{"content": {"parts": [{"text": "said"}]}, "finishReason": "STOP"}],
    }
    body = b'{"contents":[], "generationConfig" : {"topK":1,"maxTokens":5}}'
    answers: dict[str, Answers] = {
        "a": lambda one: as_json({"totalTokens": 3} if "countTokens" in one.url else whole)
    }
    headers = {"content-type": "application/json"}
    async with gateway(
        tmp_path, told_backend("a", "google-http", options=own), answers=answers
    ) as g:
        for action in ("generateContent", "countTokens"):
            path = f"/v1beta/models/a:{action}"
            assert (await g.client.post(path, content=body, headers=headers)).status_code == 200
        assert [request.body for _, request in g.sent] == [
            b'{"contents":[], "generationConfig" : {"seed":7,"maxOutputTokens":5}}',
            b'{"contents":[], "generationConfig" : {"maxOutputTokens":5}}',
        ]


async def test_what_one_model_refuses_another_one_is_still_sent(tmp_path: Path) -> None:
    answers = {"a": without("temperature"), "b": without()}
    asked = {"messages": [], "temperature": 0}
    async with gateway(tmp_path, told_backend("a"), told_backend("b"), answers=answers) as g:
        await g.client.post("/v1/chat/completions", json={"model": "a", **asked})
        other = await g.client.post("/v1/chat/completions", json={"model": "b", **asked})
        assert "x-fallbackd-repaired" not in other.headers
        assert g.bodies("b") == [{"model": "m-b", **asked}]


async def test_a_change_of_the_configuration_sends_it_once_more(tmp_path: Path) -> None:
    async with gateway(tmp_path, told_backend("a"), answers={"a": without("temperature")}) as g:
        asked = {"model": "team", "messages": [], "temperature": 0}
        await g.client.post("/v1/chat/completions", json=asked)
        policy = g.engine.settings.policy
        await g.engine.set_settings(structs.replace(g.engine.settings, policy=policy))
        await g.client.post("/v1/chat/completions", json=asked)
        assert [("temperature" in one) for one in g.bodies("a")] == [True, False, True, False]


async def test_a_refusal_that_no_repair_ends_goes_to_the_next_backend(tmp_path: Path) -> None:
    def never(request: HttpRequest) -> Told:
        return refused("Unsupported parameter: 'temperature' is not supported with this model.")

    asked = {"model": "team", "messages": [], "temperature": 0}
    async with gateway(
        tmp_path, told_backend("a"), told_backend("b"), answers={"a": never, "b": without()}
    ) as g:
        answer = await g.client.post("/v1/chat/completions", json=asked)
        assert answer.headers["x-fallbackd-served-by"] == "b"
        assert "x-fallbackd-repaired" not in answer.headers
        assert [name for name, _ in g.sent] == ["a", "a", "b"]
        assert g.bodies("b") == [{**asked, "model": "m-b"}]


async def test_a_packed_request_is_repaired_unpacked(tmp_path: Path) -> None:
    body = gzip.compress(b'{"model":"m-a","temperature":0,"messages":[]}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    seen: list[HttpRequest] = []

    def answer(request: HttpRequest) -> Told:
        seen.append(request)
        if request.headers.get("content-encoding") == "gzip":
            return refused("Unsupported parameter: 'temperature' is not supported.")
        return as_json(CHAT)

    async with gateway(tmp_path, told_backend("a"), answers={"a": answer}) as g:
        found = await g.client.post("/v1/chat/completions", content=body, headers=headers)
        assert found.status_code == 200
        assert [one.body for one in seen] == [body, b'{"model":"m-a","messages":[]}']


async def test_a_translated_request_is_repaired_in_the_words_of_its_backend(
    tmp_path: Path,
) -> None:
    names = {"max_tokens": "max_completion_tokens"}
    chain = (Entry(backend=told_backend("a").backend.id, translate=True),)
    asked = {
        "model": "team",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "say it"}],
    }
    async with gateway(
        tmp_path, told_backend("a"), answers={"a": without("max_tokens", also=names)}, team=chain
    ) as g:
        answer = await g.client.post("/v1/messages", json=asked)
        assert answer.json()["content"][0]["text"] == "said"
        assert [sorted(one) for one in g.bodies("a")][1][:2] == [
            "max_completion_tokens",
            "messages",
        ]


async def test_a_conversation_goes_from_vendor_to_vendor_and_back(tmp_path: Path) -> None:
    is_limited = {"a": False, "b": False}

    def limitable(name: str) -> Answers:
        def answer(request: HttpRequest) -> Told:
            if is_limited[name]:
                return as_json(LIMITED, 429, retry_after="3600")
            return signing(name)(request)

        return answer

    talk: list[dict[str, Any]] = []
    answered = []
    backends = (told_backend("a", "anthropic-http"), told_backend("b", "anthropic-http"))
    async with gateway(
        tmp_path, *backends, answers={name: limitable(name) for name in ("a", "b")}
    ) as g:
        for limited in ("b", "a", "b", "b"):
            is_limited.update(a=limited == "a", b=limited == "b")
            await feedback.clear(g.engine, "a")
            await feedback.clear(g.engine, "b")
            talk.append({"role": "user", "content": f"turn {len(talk)}"})
            asked = {"model": "team", "max_tokens": 9, "messages": talk}
            answer = await g.client.post(
                "/v1/messages", json=asked, headers={"x-fallbackd-session": "s"}
            )
            assert answer.status_code == 200, answer.text
            answered.append(answer.headers["x-fallbackd-served-by"])
            talk.append({"role": "assistant", "content": answer.json()["content"]})
        assert answered == ["a", "b", "a", "a"]
        refusals = [name for name, _ in g.sent]
        # Each new signature of the other vendor is refused once; the own ones stay.
        assert refusals.count("a") == 1 + 1 + 2 + 1
        last = g.bodies("a")[-1]["messages"]
        kept = [
            block["signature"]
            for one in last
            if isinstance(one["content"], list)
            for block in one["content"]
            if block["type"] == "thinking"
        ]
        assert kept == ["a-5"]


async def test_a_conversation_whose_reasoning_is_refused_for_good_moves_on(tmp_path: Path) -> None:
    def stubborn(request: HttpRequest) -> Told:
        return as_json(BAD_SIGNATURE, 400)

    talk = [
        {"role": "user", "content": "one"},
        message("b-1"),
        {"role": "user", "content": "two"},
    ]
    asked = {"model": "team", "max_tokens": 9, "messages": talk}
    backends = (told_backend("a", "anthropic-http"), told_backend("b", "anthropic-http"))
    async with gateway(tmp_path, *backends, answers={"a": stubborn, "b": signing("b")}) as g:
        for _ in range(3):
            answer = await g.client.post(
                "/v1/messages", json=asked, headers={"x-fallbackd-session": "s"}
            )
            assert answer.headers["x-fallbackd-served-by"] == "b"
        assert [name for name, _ in g.sent] == ["a", "a", "b", "b", "b"]
        assert g.marks() == {}


async def test_the_second_account_of_a_backend_is_asked_without_the_reasoning_of_the_first(
    tmp_path: Path,
) -> None:
    encrypted = {
        "error": {
            "message": "The encrypted content gAAA could not be verified.",
            "type": "invalid_request_error",
            "code": "invalid_encrypted_content",
        }
    }
    done = {
        "id": "resp",
        "status": "completed",
        "output": [
            {"type": "message", "content": [{"type": "output_text", "text": "said"}]},
        ],
    }

    def answer(request: HttpRequest) -> Told:
        if request.credential is not None and request.credential.label == "k1":
            spent = {"error": {"type": "usage_limit_reached", "resets_in_seconds": 3600}}
            return as_json(spent, 429)
        if b"gAAA" in request.body:
            return as_json(encrypted, 400)
        return as_json(done)

    backend = told_backend("a", labels=("k1", "k2"), options={"api_mode": "responses"})
    asked = {
        "model": "team",
        "input": [
            {"type": "message", "role": "user", "content": "one"},
            {"type": "reasoning", "encrypted_content": "gAAA"},
            {"type": "message", "role": "user", "content": "two"},
        ],
    }
    async with gateway(tmp_path, backend, answers={"a": answer}) as g:
        for _ in range(2):
            found = await g.client.post("/v1/responses", json=asked)
            assert found.status_code == 200, found.text
            assert found.headers["x-fallbackd-repaired"] == "no foreign reasoning"
        assert len(g.sent) == 4
        assert [len(one["input"]) for one in g.bodies("a")] == [3, 3, 2, 2]
