"""Answers that the scripted provider has stored, asked for by their id alone."""

from typing import Literal

from tests.support.provider_answers import stream
from tests.support.provider_frames import TEXT, Answer, event, responses_whole
from tests.support.provider_http import Peer, Request
from tests.support.provider_misbehaviour import ELSEWHERE

Stored = Literal[
    "ok", "gone", "limited", "redirect", "cut", "truncated", "reset", "whole", "untyped", "failed"
]
"""
Found; the words of the API for an id that is unknown, and for too many requests; elsewhere; a part
of what its length says; breaks off; not streamed though it was asked for; streamed without its
type; failed, with the key in the words of the error.
"""


async def perform(peer: Peer, request: Request, name: Stored) -> bool:
    """False: the connection is over."""
    if name == "gone":
        message = "Response with id 'resp' not found."
        await peer.send(404, {"error": {"message": message, "type": "invalid_request_error"}})
        return True
    if name == "limited":
        error = {"message": "Rate limit reached for requests", "type": "requests"}
        await peer.send(429, {"error": error}, {"retry-after": "30"})
        return True
    if name == "redirect":
        await peer.send(307, "", {"location": ELSEWHERE})
        return True
    if name == "cut":
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n"
        await peer.raw(head + b'{"id": "resp_1"')
        return False
    if name == "reset":
        peer.reset()
        return False
    named = request.path.split("/responses/")[1].partition("/")[0]
    if request.method == "DELETE":
        deleted = {"id": named, "object": "response", "deleted": True}
        await peer.send(200, deleted)
    elif request.path.endswith("/input_items"):
        items = {"object": "list", "data": [], "has_more": False, "first_id": "", "last_id": ""}
        await peer.send(200, items)
    elif request.path.endswith("/cancel"):
        whole = responses_whole(Answer(model="m", text=TEXT))
        await peer.send(200, {**whole, "id": named, "status": "cancelled"})
    elif name == "failed":
        await _failed(peer, request, named)
    elif "stream=true" in request.query and name != "whole":
        return await _streamed(peer, name)
    else:
        whole = responses_whole(Answer(model="m", text=TEXT))
        await peer.send(200, {**whole, "id": named})
    return True


async def _streamed(peer: Peer, name: Stored) -> bool:
    found = stream("responses", Answer(model="m", text=TEXT))
    if name == "untyped":
        await peer.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    else:
        await peer.begin_stream()
    for frame in found.head if name == "truncated" else (*found.head, *found.tail):
        await peer.event(frame)
    await peer.end_stream()
    return True


async def _failed(peer: Peer, request: Request, named: str) -> None:
    error = {"code": "server_error", "message": f"bad key {request.credential}"}
    whole = {**responses_whole(Answer(model="m", text=TEXT)), "id": named}
    failed = {**whole, "status": "failed", "output": [], "error": error}
    if "stream=true" not in request.query:
        await peer.send(200, failed)
        return
    await peer.begin_stream()
    for frame in stream("responses", Answer(model="m", text=TEXT)).head:
        await peer.event(frame)
    await peer.event(event("response.failed", {"response": failed}))
    await peer.end_stream()
