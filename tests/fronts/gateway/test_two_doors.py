"""The same bytes of a provider mean the same for a delegation and for a caller of the gateway."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest
from msgspec import Struct, structs
from tests.support.clock import ManualClock
from tests.support.provider_answers import stream, whole
from tests.support.provider_frames import Answer
from tests.support.provider_refusals import Dialect
from tests.support.running_engine import work
from tests.support.told import Gateway, gateway, told_backend

from fallbackd.backends.spec import ApiMode
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason
from fallbackd.engine import feedback
from fallbackd.transports.http.transport import HttpTransport

DIALECTS: dict[ApiMode, Dialect] = {
    "chat_completions": "chat",
    "responses": "responses",
    "messages": "anthropic",
    "generate_content": "google",
}
KINDS = {
    "chat_completions": "openai-http",
    "responses": "openai-http",
    "messages": "anthropic-http",
    "generate_content": "google-http",
}
PATHS = {
    "chat_completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate_content": "/v1beta/models/team:streamGenerateContent?alt=sse",
}
SAID = [{"role": "user", "content": "say it"}]
BODIES: dict[ApiMode, dict[str, Any]] = {
    "chat_completions": {"model": "team", "messages": SAID, "stream": True},
    "responses": {"model": "team", "input": SAID, "stream": True},
    "messages": {"model": "team", "messages": SAID, "max_tokens": 9, "stream": True},
    "generate_content": {"contents": [{"role": "user", "parts": [{"text": "say it"}]}]},
}
ENDS = {
    "chat_completions": ('"finish_reason": "stop"', '"finish_reason": "{}"'),
    "responses": ('"status": "completed"', '"status": "{}"'),
    "messages": ('"stop_reason": "end_turn"', '"stop_reason": "{}"'),
    "generate_content": ('"finishReason": "STOP"', '"finishReason": "{}"'),
}
BROKEN = {
    "chat_completions": ("error", "insufficient_system_resource", "network_error"),
    "responses": ("failed",),
    "messages": ("error",),
    "generate_content": ("OTHER",),
}
EMPTY_WHOLE: dict[ApiMode, list[Any]] = {
    "chat_completions": [
        {"choices": [{"index": 0, "message": None, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]},
        {"choices": []},
    ],
    "responses": [{"id": "r", "status": "completed", "output": []}],
    "messages": [
        {"type": "message", "content": [], "stop_reason": "end_turn"},
        {"type": "message", "content": [{"type": "text", "text": ""}], "stop_reason": "end_turn"},
    ],
    "generate_content": [
        {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]},
        {"candidates": [{"finishReason": "STOP"}]},
    ],
}


class Reply(Struct):
    """What the provider sends, as it leaves."""

    body: bytes
    is_stream: bool = True
    missing: int = 0
    """Bytes that its head promises and that never come."""
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    is_packed: bool = False
    """Compressed, though it was not asked for."""
    framing: Literal["length", "chunks", "trailers", "close"] = "length"
    """How its end is known: `trailers` stand behind the last chunk."""
    rest: bytes = b""
    """What is sent when the caller has got something of `body`."""

    @property
    def is_chunked(self) -> bool:
        return self.framing in ("chunks", "trailers")

    def sent(self) -> bytes:
        """Body as it leaves."""
        body = gzip.compress(self.body, mtime=0) if self.is_packed else self.body
        if not self.is_chunked:
            return body
        half = len(body) // 2
        chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in (body[:half], body[half:]) if one]
        end = b"" if self.missing else b"0\r\n" + TRAILERS * (self.framing == "trailers") + b"\r\n"
        return b"".join(chunks) + end

    def head(self, sent: bytes) -> str:
        kind = "text/event-stream" if self.is_stream else "application/json"
        fields = {"content-type": kind, "connection": "close", **self.headers}
        if self.is_packed:
            fields["content-encoding"] = "gzip"
        if self.framing == "trailers":
            fields["trailer"] = "retry-after, content-encoding"
        if self.is_chunked:
            fields["transfer-encoding"] = "chunked"
        elif self.framing == "length":
            fields["content-length"] = str(len(sent) + self.missing)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/1.1 {self.status} X\r\n{lines}\r\n"


TRAILERS = b"retry-after: 86400\r\ncontent-encoding: br\r\ncontent-length: 3\r\nx-end: 1\r\n"
"""Nothing behind a body says anything about it."""


@asynccontextmanager
async def provider(replies: list[Reply], heard: asyncio.Event | None = None) -> AsyncIterator[str]:
    """
    Answers each request with the last of `replies`.

    Args:
        heard: The caller has got something.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = asked.partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        sent = replies[-1].sent()
        writer.write(replies[-1].head(sent).encode() + sent)
        await writer.drain()
        if heard is not None and replies[-1].rest:
            await heard.wait()
            writer.write(replies[-1].rest)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def cases(mode: ApiMode) -> dict[str, tuple[Reply, str | None]]:
    """Of each reply the reason of its failure; None: it is an answer."""
    dialect = DIALECTS[mode]
    good = stream(dialect, Answer(model="m"))
    text = "".join((*good.head, *good.tail))
    empty = stream(dialect, Answer(model="m", text=""))
    found: dict[str, tuple[Reply, str | None]] = {
        "good": (Reply(text.encode()), None),
        "good, in one piece": (
            Reply(json.dumps(whole(dialect, Answer(model="m"))).encode(), False),
            None,
        ),
        "empty": (Reply("".join((*empty.head, *empty.tail)).encode()), "empty_result"),
        "no body": (Reply(b""), "empty_result"),
        "a page": (Reply(b"<!DOCTYPE html><html>login</html>", False), "not_configured"),
        "no JSON": (Reply(b'{"half": ', False), "server_error"),
        "an object of another kind": (Reply(b'{"ok": true}', False), "server_error"),
        "without its end": (Reply("".join(good.head).encode()), "network"),
        "cut": (Reply(text.encode()[: len(text) // 2], missing=9), "network"),
    }
    old, new = ENDS[mode]
    assert old in text
    for word in BROKEN[mode]:
        reason = "overloaded" if word == "insufficient_system_resource" else "server_error"
        for name, frames in (("after text", text), ("alone", found["empty"][0].body.decode())):
            body = frames.replace(old, new.format(word)).encode()
            found[f"{word}, {name}"] = Reply(body), reason
    for number, value in enumerate(EMPTY_WHOLE[mode]):
        body = json.dumps(value).encode()
        reason = "server_error" if value == {"choices": []} else "empty_result"
        found[f"empty, in one piece, {number}"] = Reply(body, False), reason
    if mode == "chat_completions":
        native = text.replace(old, f'{old}, "native_finish_reason": "network_error"')
        found["a stop that its own provider calls an error"] = (
            Reply(native.encode()),
            "server_error",
        )
    return found


async def by_gateway(g: Gateway, mode: ApiMode) -> str | None:
    """The reason of the failure; None: the caller has an answer."""
    try:
        answer = await g.client.post(
            PATHS[mode], json=BODIES[mode], headers={"x-fallbackd-failover": "0"}
        )
        is_whole = answer.status_code == 200
    except Exception:
        is_whole = False
    steps = g.engine.exchanges.newest(limit=1)[0].steps
    failed = [one.failure.reason.value for one in steps if one.failure is not None]
    assert is_whole is not bool(failed)
    return failed[-1] if failed else None


@pytest.mark.parametrize("mode", sorted(DIALECTS))
async def test_the_same_bytes_have_the_same_reason_and_marks_at_both_doors(
    mode: ApiMode, tmp_path: Path
) -> None:
    replies: list[Reply] = []
    once = {reason: structs.replace(one, retries=0) for reason, one in REASONS.items()}
    transport = HttpTransport(clock=ManualClock(), environ={})
    async with provider(replies) as url:
        options = {"base_url": f"{url}/v1", "api_mode": mode}
        backend = told_backend("a", KINDS[mode], options=options, provider="provider.example")
        async with gateway(tmp_path, backend, transport=transport, reasons=once) as g:
            for name, (reply, reason) in cases(mode).items():
                replies.append(reply)
                delegated = await work(g.engine, backend="a")
                failure = delegated.attempts[-1].failure
                marks = g.marks()
                await feedback.clear(g.engine, None)
                assert (await by_gateway(g, mode), g.marks()) == (reason, marks), name
                assert (None if failure is None else failure.reason.value) == reason, name
                await feedback.clear(g.engine, None)
        await transport.detach()


async def test_a_stated_wait_that_proved_too_short_has_the_same_end_at_both_doors(
    tmp_path: Path,
) -> None:
    said = {"error": {"message": "Rate limit reached. Please try again in 150ms.", "code": "429"}}
    replies = [Reply(json.dumps(said).encode(), is_stream=False, status=429)]
    transport = HttpTransport(clock=ManualClock(), environ={})
    async with provider(replies) as url:
        backend = told_backend("a", "openai-http", options={"base_url": f"{url}/v1"})
        async with gateway(tmp_path, backend, transport=transport) as g:
            lasts = []
            for is_delegated in (True, False):
                if is_delegated:
                    await work(g.engine, backend="a")
                else:
                    assert await by_gateway(g, "chat_completions") == "rate_limit"
                (marked,) = g.engine.store.peek().health.values()
                assert marked.outage is not None
                assert marked.outage.until_at is not None
                lasts.append(marked.outage.until_at - g.engine.clock.now())
                await feedback.clear(g.engine, None)
            window_s = REASONS[Reason.RATE_LIMIT].window_s
            assert lasts == pytest.approx([window_s, window_s], abs=60)
        await transport.detach()


@pytest.mark.parametrize("mode", sorted(DIALECTS))
async def test_an_answer_that_is_cut_at_any_place_is_the_same_at_both_doors(
    mode: ApiMode, tmp_path: Path
) -> None:
    replies: list[Reply] = []
    once = {reason: structs.replace(one, retries=0) for reason, one in REASONS.items()}
    transport = HttpTransport(clock=ManualClock(), environ={})
    body = cases(mode)["good"][0].body
    async with provider(replies) as url:
        options = {"base_url": f"{url}/v1", "api_mode": mode}
        backend = told_backend("a", KINDS[mode], options=options, provider="provider.example")
        async with gateway(tmp_path, backend, transport=transport, reasons=once) as g:
            found = set()
            for at in range(0, len(body), max(1, len(body) // 17)):
                replies.append(Reply(body[:at], missing=len(body) - at))
                delegated = await work(g.engine, backend="a")
                failure = delegated.attempts[-1].failure
                reason = None if failure is None else failure.reason.value
                marks = g.marks()
                await feedback.clear(g.engine, None)
                assert (await by_gateway(g, mode), g.marks()) == (reason, marks), at
                found.add(reason)
                await feedback.clear(g.engine, None)
            assert "network" in found
        await transport.detach()
