"""Whatever a provider sends, it means the same for a delegation and for a caller of the gateway."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.to_thread
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs
from tests.fronts.gateway.test_two_doors import BODIES, DIALECTS, KINDS, PATHS, Reply, provider
from tests.support.clock import ManualClock
from tests.support.other_json import leaves, replaced
from tests.support.provider_answers import error_event, stream, whole
from tests.support.provider_frames import Answer, ToolCall, data, event
from tests.support.provider_refusals import anthropic_error, google_error, openai_error
from tests.support.running_engine import work
from tests.support.told import Gateway, gateway, told_backend

from fallbackd.backends.spec import ApiMode
from fallbackd.core.failures import Failure
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason
from fallbackd.engine import feedback
from fallbackd.transports.http.transport import HttpTransport

ANSWERS = (
    Answer(model="m", text="alpha beta gamma"),
    Answer(model="m", text=""),
    Answer(model="m", text=" \n"),
    Answer(model="m", text="", tool=ToolCall(name="bash", arguments={"command": "ls"})),
)
"""What a model may answer."""
NOISE = (
    ": ping\n\n",
    "data: {\n\n",
    "data: null\n\n",
    "data: {}\n\n",
    "data: [DONE]\n\n",
    "event: ping\ndata: {}\n\n",
    'event: unheard.of\ndata: {"type": "unheard.of"}\n\n',
    'data: {"error": {"message": "upstream overloaded", "code": 503}}\n\n',
    "<html>502</html>\n\n",
)
WORDS = (
    *("stop", "length", "tool_calls", "content_filter", "error", "network_error", "odd"),
    *("end_turn", "max_tokens", "refusal", "pause_turn", "completed", "incomplete", "failed"),
    *("STOP", "MAX_TOKENS", "SAFETY", "OTHER", "MALFORMED_FUNCTION_CALL", ""),
)
"""For why an answer ends."""
SAID = (
    "Rate limit reached for requests",
    "You exceeded your current quota, please check your plan and billing details.",
    "Overloaded",
    "invalid x-api-key",
    "The model `m` does not exist",
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
    "Output blocked by content filtering policy",
    "Internal server error",
    "",
)
STATUSES = (400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529)
ENDS = ("finish_reason", "stop_reason", "finishReason", "status", "native_finish_reason")


@st.composite
def streams(draw: st.DrawFn, mode: ApiMode) -> bytes:
    dialect = DIALECTS[mode]
    made = stream(dialect, draw(st.sampled_from(ANSWERS)))
    frames = [*made.head, *made.tail]
    noise = (*NOISE, error_event(dialect, "error_mid"), error_event(dialect, "rate_limit_mid"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(frames) - 1))
        match draw(st.sampled_from(("drop", "twice", "noise", "end"))):
            case "drop" if len(frames) > 1:
                del frames[at]
            case "twice":
                frames.insert(at, frames[at])
            case "noise":
                frames.insert(at, draw(st.sampled_from(noise)))
            case _:
                word = draw(st.sampled_from(WORDS))
                frames = [with_end(one, word) for one in frames]
    body = "".join(frames).encode()
    return body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body


def with_end(frame: str, word: str) -> str:
    """The frame with another word for the end of the answer, where it has one."""
    head, _, data = frame.partition("data: ")
    try:
        value = json.loads(data)
    except ValueError:
        return frame
    for path in leaves(value) if isinstance(value, dict) else []:
        inner = value
        for name in path[:-1]:
            inner = inner[name]
        if path[-1] in ENDS and isinstance(inner[path[-1]], str):
            value = replaced(value, path, word)
    return f"{head}data: {json.dumps(value)}\n\n"


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The same JSON with something else in one place; the kind of an item stays."""
    places = [one for one in leaves(value) if one[-1] != "type"]
    if not places:
        return value
    new = draw(st.sampled_from((None, "", [], {}, 7, "error", "network_error", "length")))
    return replaced(value, draw(st.sampled_from(places)), new)


@st.composite
def bodies(draw: st.DrawFn, mode: ApiMode) -> bytes:
    value = whole(DIALECTS[mode], draw(st.sampled_from(ANSWERS)))
    for _ in range(draw(st.integers(0, 2))):
        value = draw(mutated(value))
    body = json.dumps(value).encode()
    return body[: draw(st.integers(0, len(body)))] if draw(st.integers(0, 5)) == 0 else body


@st.composite
def refusals(draw: st.DrawFn, mode: ApiMode) -> Reply:
    status, said = draw(st.sampled_from(STATUSES)), draw(st.sampled_from(SAID))
    named = draw(
        st.sampled_from(
            ("rate_limit_error", "overloaded_error", "invalid_request_error", "insufficient_quota")
        )
    )
    error: Any = {
        "messages": anthropic_error(named, said),
        "generate_content": google_error(status, "RESOURCE_EXHAUSTED", said),
    }.get(mode, openai_error(said, named))
    if draw(st.booleans()):
        error = draw(mutated(error))
    body = draw(
        st.sampled_from((json.dumps(error), said, f"<html>{said}</html>", "", '{"detail": "no"}'))
    )
    headers = draw(
        st.sampled_from(
            ({}, {"retry-after": "7200"}, {"x-should-retry": "false"}, {"retry-after": "soon"})
        )
    )
    return Reply(body.encode(), is_stream=False, status=status, headers=headers)


@st.composite
def replies(draw: st.DrawFn, mode: ApiMode) -> Reply:
    missing = st.sampled_from((0, 0, 0, 9))
    made = draw(
        st.one_of(
            st.builds(Reply, streams(mode), is_stream=st.just(True), missing=missing),
            st.builds(Reply, bodies(mode), is_stream=st.booleans(), missing=missing),
            refusals(mode),
        )
    )
    framing = draw(st.sampled_from(("length", "length", "chunks", "trailers", "close")))
    is_packed = draw(st.sampled_from((False, False, True)))
    return structs.replace(made, framing=framing, is_packed=is_packed)


OF_THE_CALLER = frozenset({"http-output-limit", "http-filtered", "http-unfinished"})
"""Signatures of whole answers that only a delegation cannot use: it has no tools of its own."""


def is_of_the_caller(failure: Failure, reply: Reply) -> bool:
    is_call = b'"bash"' in reply.body and failure.signature == "empty"
    return is_call or failure.signature in OF_THE_CALLER


class Meaning(Struct):
    """What one door makes of an answer."""

    failure: Failure | None
    marks: dict[str, tuple[Reason, float]]
    """Of each scope: why it is out of rotation, and until when."""

    def same(self) -> tuple[object, ...]:
        one = self.failure
        said = None if one is None else (one.reason, one.detail, one.scope, one.signature)
        return said, {scope: reason for scope, (reason, _) in self.marks.items()}

    def lasts_as(self, other: "Meaning") -> bool:
        return all(abs(until - other.marks[one][1]) < 60 for one, (_, until) in self.marks.items())


def marks(g: Gateway) -> dict[str, tuple[Reason, float]]:
    found = ((scope, one.outage) for scope, one in g.engine.store.peek().health.items())
    return {scope: (one.reason, one.until_at) for scope, one in found if one is not None}


async def by_delegation(g: Gateway) -> Meaning:
    delegated = await work(g.engine, backend="a")
    found = Meaning(delegated.attempts[-1].failure, marks(g))
    await feedback.clear(g.engine, None)
    return found


async def by_call(g: Gateway, mode: ApiMode, heard: asyncio.Event | None = None) -> Meaning:
    """
    Args:
        heard: Set with the first piece of its answer.
    """
    with suppress(httpx2.HTTPError):  # an answer that broke off
        alone = {"x-fallbackd-failover": "0"}
        path, body = PATHS[mode], BODIES[mode]
        async with g.client.stream("POST", path, json=body, headers=alone) as answer:
            async for _ in answer.aiter_raw():
                if heard is not None:
                    heard.set()
    steps = g.engine.exchanges.newest(limit=1)[0].steps
    found = Meaning(next((one.failure for one in reversed(steps) if one.failure), None), marks(g))
    await feedback.clear(g.engine, None)
    return found


@pytest.mark.parametrize("mode", sorted(DIALECTS))
async def test_the_same_answer_has_the_same_reason_scope_and_marks_at_both_doors(
    mode: ApiMode, tmp_path: Path
) -> None:
    sent: list[Reply] = []
    once = {reason: structs.replace(one, retries=0) for reason, one in REASONS.items()}
    transport = HttpTransport(clock=ManualClock(), environ={})
    async with provider(sent) as url:
        options = {"base_url": f"{url}/v1", "api_mode": mode}
        backend = told_backend("a", KINDS[mode], options=options, provider="provider.example")
        async with gateway(tmp_path, backend, transport=transport, reasons=once) as g:

            async def both(reply: Reply) -> None:
                sent[:] = [reply]
                delegated, called = await by_delegation(g), await by_call(g, mode)
                failure = delegated.failure
                if called.failure is None and failure and is_of_the_caller(failure, reply):
                    return
                assert called.same() == delegated.same()
                assert called.lasts_as(delegated)

            @settings(max_examples=60)
            @given(replies(mode))
            def check(reply: Reply) -> None:
                anyio.from_thread.run(both, reply)

            await anyio.to_thread.run_sync(check)
        await transport.detach()


def chat_end(word: str, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": word, **more}
    return data({"object": "chat.completion.chunk", "choices": [choice]} | more)


def failed(status: str, **more: Any) -> str:
    response = {"id": "r", "object": "response", "status": status, "output": [], **more}
    return event(f"response.{status}", {"response": response, "sequence_number": 99})


MIDWAY: dict[ApiMode, dict[str, tuple[str, str]]] = {
    "chat_completions": {
        "the limit of requests": (
            "rate_limit",
            data(openai_error(SAID[0], "requests", "rate_limit_exceeded")),
        ),
        "the plan": ("billing", data(openai_error(SAID[1], "insufficient_quota"))),
        "its own trouble": ("server_error", data(openai_error(SAID[7], "server_error"))),
        "a line of event": (
            "server_error",
            "event: error\n" + data(openai_error(SAID[7], "internal_server_error", "500")),
        ),
        "words alone": ("server_error", data({"error": SAID[7]})),
        "a number": ("overloaded", data({"error": {"message": SAID[2], "code": 503}})),
        "no wrapper": (
            "server_error",
            data({"object": "error", "message": SAID[7], "type": "InternalServerError"}),
        ),
        "beside an end": (
            "server_error",
            chat_end("error", error={"code": 502, "message": "Provider disconnected"}),
        ),
        "an end alone": ("server_error", chat_end("network_error")),
        "the context": (
            "context_overflow",
            data(openai_error(SAID[5], "invalid_request_error", "context_length_exceeded")),
        ),
    },
    "responses": {
        "the limit of requests": (
            "rate_limit",
            failed("failed", error={"code": "rate_limit_exceeded", "message": SAID[0]}),
        ),
        "its own trouble": ("server_error", error_event("responses", "error_mid")),
        "an event of its own": (
            "rate_limit",
            event("error", {"code": "rate_limit_exceeded", "message": SAID[0], "param": None}),
        ),
        "an event with an object": (
            "server_error",
            event("error", {"error": {"type": "server_error", "message": SAID[7]}}),
        ),
        "the plan": (
            "billing",
            failed("failed", error={"code": "insufficient_quota", "message": SAID[1]}),
        ),
        "a failure that says nothing": ("server_error", failed("failed", error=None)),
        "the context": (
            "context_overflow",
            failed("failed", error={"code": "context_length_exceeded", "message": SAID[5]}),
        ),
    },
    "messages": {
        name: (reason, event("error", anthropic_error(name, said)))
        for name, said, reason in (
            ("overloaded_error", "Overloaded", "overloaded"),
            ("rate_limit_error", "This request would exceed your rate limit.", "rate_limit"),
            ("api_error", SAID[7], "server_error"),
            ("timeout_error", "Request timed out.", "timeout"),
            ("authentication_error", SAID[3], "auth"),
            ("billing_error", "Your credit balance is too low.", "billing"),
        )
    },
    "generate_content": {
        "the minute": ("rate_limit", data(google_error(429, "RESOURCE_EXHAUSTED", "Exhausted."))),
        "overload": ("overloaded", data(google_error(503, "UNAVAILABLE", "Overloaded."))),
        "its own trouble": ("server_error", data(google_error(500, "INTERNAL", SAID[7]))),
        "the limit of time": ("timeout", data(google_error(504, "DEADLINE_EXCEEDED", "Late."))),
        "the key": (
            "auth",
            data(google_error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid.")),
        ),
    },
}
"""Errors of each API in the middle of a stream: their reason, and what is sent."""


def with_error(mode: ApiMode, sent: str) -> dict[str, Reply]:
    """An answer that ends with the error, behind each of its events: at once, or when they came."""
    made = stream(DIALECTS[mode], ANSWERS[0])
    frames = (*made.head, *made.tail)
    error = (sent + ("data: [DONE]\n\n" if mode == "chat_completions" else "")).encode()
    found: dict[str, Reply] = {}
    for count in range(len(frames)):
        before = "".join(frames[:count]).encode()
        found[f"behind {count}"] = Reply(before + error)
        if count >= len(made.head):
            found[f"behind {count}, late"] = Reply(before, framing="close", rest=error)
    return found


@pytest.mark.parametrize("mode", sorted(DIALECTS))
async def test_an_error_in_the_middle_of_a_stream_means_the_same_at_both_doors(
    mode: ApiMode, tmp_path: Path
) -> None:
    sent: list[Reply] = []
    once = {reason: structs.replace(one, retries=0) for reason, one in REASONS.items()}
    transport = HttpTransport(clock=ManualClock(), environ={})
    heard = asyncio.Event()
    async with provider(sent, heard) as url:
        options = {"base_url": f"{url}/v1", "api_mode": mode}
        backend = told_backend("a", KINDS[mode], options=options, provider="provider.example")
        async with gateway(tmp_path, backend, transport=transport, reasons=once) as g:
            for name, (reason, error) in MIDWAY[mode].items():
                for place, reply in with_error(mode, error).items():
                    sent[:] = [reply]
                    heard.set()  # nothing of a delegation has to be waited for
                    delegated = await by_delegation(g)
                    heard.clear()
                    called = await by_call(g, mode, heard)
                    assert called.same() == delegated.same(), (name, place)
                    assert called.lasts_as(delegated), (name, place)
                    found = called.failure
                    assert found is not None, (name, place)
                    assert found.reason == reason, (name, place)
        await transport.detach()
