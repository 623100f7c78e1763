"""What the scripted provider can be told to do, and how it does that to one model call."""

import asyncio
import json
import re
from typing import Any, Literal

from msgspec import Struct
from tests.support import (
    provider_answers,
    provider_frames,
    provider_misbehaviour,
    provider_refusals,
    provider_stored,
)
from tests.support.provider_http import Peer, Request
from tests.support.provider_refusals import Dialect

ANSWERS = ("ok", "slow", "tool")
INSTEAD = ("hang", "reset", "empty", "garbage", "refuse")
MIDWAY = ("cut_early", "hang_mid", "reset_mid", "truncated", "error_mid", "rate_limit_mid")
ENDINGS: dict[str, Literal["length", "filter"]] = {"cut_short": "length", "filtered": "filter"}
"""Whole answers whose own sign says that they are none."""
NAMES = (
    *ANSWERS,
    *INSTEAD,
    *MIDWAY,
    *ENDINGS,
    *provider_misbehaviour.NAMES,
    *provider_refusals.NAMES,
)


class Behaviour(Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = ("ok",)
    """For the first call, the second, …; the last one stays."""
    retry_after_s: float | None = 5
    reset_in_s: float = 13872
    command: str = "true"
    each_turn: bool = False
    """`command` is run although the request holds results of others."""
    call: str = ""
    """A tool of an MCP server that `tool` calls in place of the shell; with `arguments`."""
    arguments: dict[str, Any] = {}
    waits: str = ""
    """Another tool, called as long as the last result says that its delegation is running."""
    text: str = provider_frames.TEXT
    thought: str = ""
    """Before each answer; of the chat and the messages API."""
    status: int = 400
    message: str = "no"
    """What `refuse` says, in the shape of OpenAI."""
    stored: provider_stored.Stored = "ok"
    """How requests for an answer that is stored are met."""
    count_status: int = 200
    """Of the answer to a request to count tokens."""
    pause_s: float = 1.5
    """Between two events of `slow`."""
    until: str = ""
    """Words of a request that is answered with `then`, whatever its number is; empty: none."""
    then: str = "ok"

    def name_of(self, number: int, body: dict[str, Any]) -> str:
        """Of the behaviour that a request meets, 0 for the first one."""
        if self.until and self.until in json.dumps(body, ensure_ascii=False):
            return self.then
        return self.names[min(number, len(self.names) - 1)]


async def perform(
    peer: Peer,
    request: Request,
    dialect: Dialect,
    name: str,
    behaviour: Behaviour,
) -> bool:
    if name in provider_refusals.NAMES:
        limits = provider_refusals.Limits(
            retry_after_s=behaviour.retry_after_s, reset_in_s=behaviour.reset_in_s
        )
        no = provider_refusals.refusal(name, dialect, request.model, limits)
        await peer.send(no.status, no.body, no.headers)
        return True
    match name:
        case "hang":
            await peer.closed()
            return False
        case "reset":
            peer.reset()
            return False
        case "empty":
            await peer.send(200, "", {"content-type": "text/event-stream"})
            return True
        case "refuse":
            error = provider_refusals.openai_error(behaviour.message, "invalid_request_error")
            await peer.send(behaviour.status, error)
            return True
        case "garbage":
            await peer.send(200, "<<<this is not JSON>>> {]", {"content-type": "application/json"})
            return True
    tool = _tool_of(behaviour, dialect, request.body) if name == "tool" else None
    text = request.wanted_json or behaviour.text
    answer = provider_frames.Answer(
        model=request.model,
        text=text,
        tool=tool,
        ending=ENDINGS.get(name, "stop"),
        thought=behaviour.thought,
    )
    if name in provider_misbehaviour.NAMES:
        whole = json.dumps(provider_answers.whole(dialect, answer))
        stream = provider_answers.stream(dialect, answer)
        return await provider_misbehaviour.misbehave(
            peer, name, dialect, request.model, whole, stream
        )
    if not request.streams:
        return await _perform_whole(peer, dialect, name, answer, behaviour)
    stream = provider_answers.stream(dialect, answer)
    await peer.begin_stream()
    # Before its first word an answer has been opened at most.
    begun = stream.head[:-2] if name == "cut_early" else stream.head
    for event in begun:
        await peer.event(event, pause_s=behaviour.pause_s if name == "slow" else 0)
    match name:
        case "hang_mid":
            await peer.closed()
            return False
        case "reset_mid":
            peer.reset()
            return False
        case "error_mid" | "rate_limit_mid":
            await peer.event(provider_answers.error_event(dialect, name))
        case "truncated" | "cut_early":
            pass
        case _:
            for event in stream.tail:
                await peer.event(event, pause_s=behaviour.pause_s if name == "slow" else 0)
    await peer.end_stream()
    return True


_RESULT = re.compile(r'delegation[\\\\": ]+(d[0-9a-f]+)[\\\\", ]+state[\\\\": ]+(\w+)')
"""In whatever way a client escapes it."""


def _tool_of(
    behaviour: Behaviour, dialect: Dialect, body: dict[str, Any]
) -> provider_frames.ToolCall | None:
    is_new = behaviour.each_turn and behaviour.command not in json.dumps(body)
    if is_new or not provider_answers.has_tool_result(body):
        if behaviour.call:
            return provider_answers.offered_call(body, behaviour.call, behaviour.arguments)
        return provider_answers.shell_call(dialect, body, behaviour.command)
    results = _RESULT.findall(json.dumps(body)) if behaviour.waits else []
    if not results or results[-1][1] != "running":
        return None
    return provider_answers.offered_call(body, behaviour.waits, {"delegation": results[-1][0]})


async def _perform_whole(
    peer: Peer,
    dialect: Dialect,
    name: str,
    answer: provider_frames.Answer,
    behaviour: Behaviour,
) -> bool:
    """Without a stream there is no midway: the nearest failure that a whole body can have."""
    match name:
        case "hang_mid":
            await peer.closed()
            return False
        case "reset_mid" | "truncated" | "cut_early":
            peer.reset()
            return False
        case "error_mid" | "rate_limit_mid":
            kind = "429" if name == "rate_limit_mid" else "529"
            limits = provider_refusals.Limits(retry_after_s=behaviour.retry_after_s)
            no = provider_refusals.refusal(kind, dialect, answer.model, limits)
            await peer.send(no.status, no.body, no.headers)
            return True
    if name == "slow":
        await asyncio.sleep(4 * behaviour.pause_s)
    await peer.send(200, provider_answers.whole(dialect, answer))
    return True
