"""The official client libraries through the gateway, beyond a plain answer."""

import base64
import json
import os
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
from tests.support.daemon import HANG_S, ROOT
from tests.support.gateway import KINDS, Gate, gate
from tests.support.provider_frames import TEXT, Answer
from tests.support.told import Told, as_events, as_json, gateway, told_backend

from fallbackd.core.protocol import HttpRequest

PYTHON = ROOT / ".venv-sdk" / "bin" / "python"


async def library(g: Gate, client: str) -> dict[str, Any]:
    """What `sdk_client` prints of it."""
    try:
        return await printed(client, f"http://127.0.0.1:{g.port}", g.token)
    except AssertionError as error:
        raise AssertionError(g.daemon.log()[-3000:]) from error


async def printed(client: str, url: str, token: str, model: str = "team") -> dict[str, Any]:
    argv = [str(PYTHON), str(ROOT / "tests/e2e/sdk_client.py"), client, url, model]
    env = {"API_KEY": token, "PATH": os.environ["PATH"]}

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=4 * HANG_S, check=False
        )

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


async def test_a_stored_response_is_retrieved_cancelled_and_deleted(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "503")
        found = await library(g, "openai-stored")
        assert found == {"text": TEXT, "end": "response_not_found"}
        assert {route for route, _ in g.api.lookups} == {"two"}
        methods = [asked.partition(" ")[0] for _, asked in g.api.lookups]
        assert methods == ["GET", "GET", "GET", "POST", "DELETE"]


async def test_embeddings_and_older_completions_are_answered_by_the_next_backend(
    tmp_path: Path,
) -> None:
    limited = as_json({"error": {"message": "slow down", "type": "rate_limit"}}, 429)
    packed = base64.b64encode(struct.pack("<2f", 0.5, -0.25)).decode()
    vectors = as_json(
        {
            "object": "list",
            "model": "e",
            "data": [{"object": "embedding", "index": 0, "embedding": packed}],
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }
    )
    ends = ("po", None), ("ng", None), ("", "stop")
    pieces = [{"choices": [{"index": 0, "text": one, "finish_reason": end}]} for one, end in ends]
    stream = as_events(*(b"data: %b\n\n" % json.dumps(one).encode() for one in pieces))

    def answer(request: HttpRequest) -> Told:
        return vectors if request.url.endswith("/embeddings") else stream

    backends = [told_backend(name, options={"embeddings": ("e",)}) for name in ("one", "two")]
    answers = {"one": lambda _: limited, "two": answer}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        url = str(g.client.base_url).rstrip("/")
        found = await printed("openai-embeddings", url, "token", "e")
        assert found == {"text": "e", "end": [[0.5, -0.25], 3]}
        found = await printed("openai-completions", url, "token")
        assert found == {"text": "pong", "end": "stop"}
        assert [name for name, _ in g.sent] == ["one", "two", "two"]


async def test_the_library_of_google_is_answered_by_the_next_backend(tmp_path: Path) -> None:
    limited = as_json({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, 429)

    def piece(text: str, **more: str) -> dict[str, Any]:
        content = {"role": "model", "parts": [{"text": text}]}
        return {"candidates": [{"content": content, "index": 0, **more}]}

    whole = piece("pong", finishReason="STOP")
    pieces = piece("po"), piece("ng", finishReason="STOP")
    stream = as_events(*(b"data: %b\r\n\r\n" % json.dumps(one).encode() for one in pieces))
    answers = {
        "streamGenerateContent?alt=sse": stream,
        "generateContent": as_json(whole),
        "countTokens": as_json({"totalTokens": 3}),
        "batchEmbedContents": as_json({"embeddings": [{"values": [0.5, -0.25]}]}),
    }

    def answer(request: HttpRequest) -> Told:
        return answers[request.url.rpartition(":")[2]]

    options = {"embeddings": ("e",)}
    backends = [told_backend(name, "google-http", options=options) for name in ("one", "two")]
    async with gateway(tmp_path, *backends, answers={"one": lambda _: limited, "two": answer}) as g:
        found = await printed("google", str(g.client.base_url).rstrip("/"), "token")
        end = ["pong", "STOP", ["pong", "pong"], 3, [0.5, -0.25], True]
        assert found == {"text": "pong", "end": end}
        assert [name for name, _ in g.sent] == ["one", *["two"] * 6]


THIRD = """
[backends.three]
kind = "{kind}"
base_url = "{{url}}{path}"
model = "model-of-three"
api_mode = "{mode}"
cost = "local"
"""
CHAINS = 'first = ["one"]\nother = [{ backend = "three", translate = true }]'
OWN, FOREIGN = "a thought of one", "a thought of three"


@asynccontextmanager
async def thinking(tmp_path: Path, mode: str, other: str) -> AsyncIterator[Gate]:
    """`one` speaks the client's API, `three` the other; both think, call a tool, then answer."""
    kind, path = KINDS[other]
    more = THIRD.format(kind=kind, path=path, mode=other)
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=more) as g:
        for route, thought in (("one", OWN), ("three", FOREIGN)):
            g.api.behave(route, "tool", command=f"by {route}", thought=thought)
        yield g


async def test_a_conversation_of_the_messages_api_keeps_its_signed_thoughts_and_no_others(
    tmp_path: Path,
) -> None:
    async with thinking(tmp_path, "messages", "chat_completions") as g:
        turns = (await library(g, "anthropic-thinking"))["end"]
        own = Answer(model="", thought=OWN)
        thought = {"type": "thinking", "thinking": OWN, "signature": own.signature}
        (call,), second, third, fourth = turns
        assert (call["type"], call["name"]) == ("tool_use", "Bash")
        assert call["input"]["command"] == "by three"
        text = {"type": "text", "text": TEXT}
        assert (second, third, fourth) == ([thought, text], [text], [thought, text])
        # What no provider has signed never came back to the one that signs, and what it has
        # signed itself came back as it was; to the other one neither.
        _, last = g.api.calls("one")
        blocks = [one for turn in last.body["messages"] for one in turn["content"]]
        assert [one for one in blocks if "thinking" in one or "signature" in one] == [thought]
        for sent in g.api.calls("three"):
            said = json.dumps(sent.body)
            assert OWN not in said
            assert "signature" not in said


async def test_a_conversation_of_chat_completions_never_sends_a_thought_as_a_signed_one(
    tmp_path: Path,
) -> None:
    async with thinking(tmp_path, "chat_completions", "messages") as g:
        first, second, third, fourth = (await library(g, "openai-thinking"))["end"]
        (call,) = first["calls"]
        assert (call["name"], first["end"], first["thought"]) == ("Bash", "tool_calls", FOREIGN)
        assert json.loads(call["arguments"])["command"] == "by three"
        for turn, thought in ((second, OWN), (third, FOREIGN), (fourth, OWN)):
            assert (turn["text"], turn["thought"], turn["end"]) == (TEXT, thought, "stop")
        for sent in g.api.calls("three"):
            said = json.dumps(sent.body["messages"])
            assert "thinking" not in said
            assert "signature" not in said
            assert OWN not in said
        assert "signed:" not in json.dumps([sent.body for sent in g.api.calls("one")])
