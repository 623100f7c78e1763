"""
What servers do that no reference describes, each to one model call.

    redirect      302 to another host            html          200 with a page of HTML
    error_200     an error as the body of a 200  big_header    a header of ten megabytes
    long_length   says more bytes than it sends  short_length  says fewer
    endless       words without an end           pings         comments without an end
    drip          one byte of an event at a time drip_head     one byte of the head at a time
    held          a whole answer, then silence
    pings_mid     two words, then nothing but signs of a connection that is open
    damaged_*     a whole answer, of which one piece in the middle is spoiled
    done_early    `[DONE]` in the middle, then the rest
    done_more     a whole answer, then another one
"""

import contextlib
import json

from tests.support import provider_refusals
from tests.support.provider_answers import Stream, error_event
from tests.support.provider_http import Peer
from tests.support.provider_refusals import Dialect

_NAMES = (
    "redirect",
    "html",
    "error_200",
    "error_event",
    "queued",
    "big_header",
    "long_length",
    "short_length",
    "endless",
    "pings",
    "drip",
    "drip_head",
    "held",
    "pings_mid",
    "done_early",
    "done_more",
)
DAMAGE = {
    "damaged_json": 'data: {"choices": [{"delta": {"cont\n\n',
    "damaged_page": "data: <html><body>502 Bad Gateway</body></html>\n\n",
    "damaged_words": "upstream connect error or disconnect/reset before headers\n\n",
    "damaged_error": "event: error\ndata: upstream connect error\n\n",
}
NAMES = (*_NAMES, *DAMAGE)
PINGS: dict[Dialect, str] = {
    "chat": 'data: {"choices": [{"delta": {"content": ""}}]}\n\n: keepalive\n\n',
    "responses": 'data: {"type": "response.in_progress", "response": {}}\n\n: keepalive\n\n',
    "anthropic": 'event: ping\ndata: {"type": "ping"}\n\n',
    "google": ": keepalive\n\n",
}
WITHOUT_END = frozenset({"endless", "pings", "drip", "drip_head", "held", "pings_mid"})
ELSEWHERE = "https://login.elsewhere.example/start"
PAGE = "<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>Sign in</body></html>"
BIG_HEADER_BYTES = 10 * 1024 * 1024
STEP_S = 0.02


async def misbehave(
    peer: Peer, name: str, dialect: Dialect, model: str, whole: str, stream: Stream
) -> bool:
    """
    Args:
        whole: The proper answer as one body.
        stream: The same as events.

    Returns:
        False when the connection is over.
    """
    match name:
        case "redirect":
            await peer.send(302, "", {"location": ELSEWHERE})
            return True
        case "html":
            await peer.send(200, PAGE)
            return True
        case "error_200":
            limits = provider_refusals.Limits()
            no = provider_refusals.refusal("429", dialect, model, limits)
            await peer.send(200, no.body)
            return True
        case "error_event":
            await peer.begin_stream()
            await peer.event(error_event(dialect, "rate_limit_mid"))
            await peer.end_stream()
            return True
        case "queued":
            await peer.send(200, {**json.loads(whole), "status": "queued", "output": []})
            return True
        case "long_length" | "short_length":
            size = len(whole) + (100 if name == "long_length" else -20)
            await peer.raw(_head(f"content-length: {size}") + whole.encode())
            return False
        case _ if name in DAMAGE or name in ("done_early", "done_more"):
            # A client that has seen enough leaves before the end.
            with contextlib.suppress(ConnectionError):
                await _spoiled(peer, name, stream)
                return True
            return False
    # The rest continues until the other side has had enough.
    with contextlib.suppress(ConnectionError):
        await _without_end(peer, name, dialect, stream)
    return False


async def _spoiled(peer: Peer, name: str, stream: Stream) -> None:
    done = "data: [DONE]\n\n"
    match name:
        case "done_early":
            events = (*stream.head, done, *stream.tail)
        case "done_more":
            events = (*stream.head, *stream.tail, done, *stream.head, *stream.tail)
        case _:
            events = (*stream.head, DAMAGE[name], *stream.tail[1:])
    await peer.begin_stream()
    for event in events:
        await peer.event(event)
    await peer.end_stream()


async def _without_end(peer: Peer, name: str, dialect: Dialect, stream: Stream) -> None:
    match name:
        case "big_header":
            await peer.raw(b"HTTP/1.1 200 OK\r\nx-big: " + b"x" * BIG_HEADER_BYTES + b"\r\n\r\n")
        case "drip_head":
            await peer.raw(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not peer.has_left:
                await peer.raw(b"x", pause_s=STEP_S)
        case "held":
            await peer.begin_stream()
            for event in (*stream.head, *stream.tail):
                await peer.event(event)
            await peer.closed()
        case "drip":
            await peer.begin_stream()
            for event in stream.head:
                await peer.event(event)
            while not peer.has_left:
                await peer.event("d", pause_s=STEP_S)
        case "pings":
            await peer.begin_stream()
            while not peer.has_left:
                await peer.event(": PROCESSING\n\n", pause_s=STEP_S)
        case "pings_mid":
            await peer.begin_stream()
            for event in stream.head:
                await peer.event(event)
            while not peer.has_left:
                await peer.event(PINGS[dialect], pause_s=STEP_S)
        case "endless":
            await peer.begin_stream()
            for event in stream.head:
                await peer.event(event)
            while not peer.has_left:
                await peer.event(stream.head[-1] * 50)


def _head(*fields: str) -> bytes:
    lines = ("HTTP/1.1 200 OK", "content-type: application/json", "connection: close", *fields)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
