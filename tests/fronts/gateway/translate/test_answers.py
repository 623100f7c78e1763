"""Answers in the other API: in one piece and in many they say the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.provider_frames import Answer, ToolCall, anthropic_frames, chat_frames

from fallbackd.backends.spec import ApiMode
from fallbackd.fronts.gateway.translate.translation import Target, Translation, begin

BOTH: tuple[tuple[ApiMode, ApiMode], ...] = (
    ("messages", "chat_completions"),
    ("chat_completions", "messages"),
)
WORDS = st.text("abc dé\n", min_size=1, max_size=8)
CALLS = st.tuples(st.sampled_from(["read", "write"]), st.dictionaries(WORDS, WORDS, max_size=2))
FINISHES = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


def between(asked: ApiMode, *, includes_usage: bool = True) -> Translation:
    spoken: ApiMode = "messages" if asked == "chat_completions" else "chat_completions"
    request = {"messages": [], "stream_options": {"include_usage": includes_usage}}
    return begin(asked, spoken, json.dumps(request).encode(), Target(model="m", host=""))


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)


def events_in(data: bytes) -> Iterator[dict[str, Any]]:
    for block in data.decode().split("\n\n"):
        found = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if found and found != ["[DONE]"]:
            yield json.loads(found[0])


def through(translation: Translation, stream: bytes, *, size: int = 10**9) -> bytes:
    reader = translation.stream(at=5)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    return b"".join(map(reader.feed, pieces)) + reader.end()


def gathered(data: bytes) -> dict[str, Any]:
    """A message, as Anthropic's library gathers it: one block after the other."""
    message: dict[str, Any] = {}
    texts: list[str] = []
    is_open = False
    for event in events_in(data):
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                texts.append("")
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(texts) - 1
                texts[-1] += event["delta"].get("text") or event["delta"].get("partial_json", "")
            case "content_block_stop":
                is_open = False
                block = message["content"][-1]
                if block["type"] == "text":
                    block["text"] = texts[-1]
                else:
                    block["input"] = json.loads(texts[-1] or "{}")
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert not is_open
    return message


def gathered_chat(data: bytes) -> dict[str, Any]:
    """A completion, as OpenAI's library gathers it: calls by their index."""
    text, thought, finish, used = "", "", None, None
    calls: dict[int, dict[str, Any]] = {}
    for chunk in events_in(data):
        used = chunk.get("usage") or used
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            finish = choice["finish_reason"] or finish
            for piece in delta.get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"function": {"arguments": ""}})
                call["function"]["arguments"] += piece["function"].pop("arguments")
                call["function"] |= piece.pop("function")
                call |= {name: one for name, one in piece.items() if name != "index"}
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    message |= {"reasoning_content": thought} if thought else {}
    message |= {"tool_calls": [calls[at] for at in sorted(calls)]} if calls else {}
    return {"message": message, "finish_reason": finish, "usage": used}


@st.composite
def chat_answers(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """One answer of chat completions: whole, and as a stream whose calls are mixed."""
    text = draw(st.none() | WORDS)
    calls = [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for at, (name, given) in enumerate(draw(st.lists(CALLS, max_size=3)))
    ]
    finish = "tool_calls" if calls else draw(st.sampled_from(sorted(FINISHES)))
    used = {"prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": {}}
    used["prompt_tokens_details"] = {"cached_tokens": 20}
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    base = {"id": "c1", "model": "m"}
    whole = {**base, "choices": [{"message": message, "finish_reason": finish}], "usage": used}

    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if draw(st.booleans()):
        deltas.append({"reasoning_content": "hm"})
    deltas += [{"content": one} for one in text or ""]
    heads = []
    rest: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        head = {**call, "index": at, "function": {**call["function"], "arguments": ""}}
        heads.append({"tool_calls": [head]})
        rest.append({"at": at, "left": list(arguments)})
    is_mixed = draw(st.booleans())
    if is_mixed:
        deltas += heads
    while rest:
        one = rest[draw(st.integers(0, len(rest) - 1)) if is_mixed else 0]
        if not is_mixed and heads and heads[0]["tool_calls"][0]["index"] == one["at"]:
            deltas.append(heads.pop(0))
        piece = {"index": one["at"], "function": {"arguments": one["left"].pop(0)}}
        deltas.append({"tool_calls": [piece]})
        if not one["left"]:
            rest.remove(one)
    chunks = [{**base, "choices": [{"delta": one, "finish_reason": None}]} for one in deltas]
    chunks.append({**base, "choices": [{"delta": {}, "finish_reason": finish}]})
    chunks.append({**base, "choices": [], "usage": used})
    return whole, sse(*chunks) + b"data: [DONE]\n\n"


@given(chat_answers(), st.integers(1, 40))
def test_a_stream_of_chat_completions_says_what_the_whole_answer_says(
    answer: tuple[dict[str, Any], bytes], size: int
) -> None:
    whole, stream = answer
    translation = between("messages")
    said = json.loads(translation.whole(json.dumps(whole).encode(), at=5))
    assert gathered(through(translation, stream, size=size)) == said
    finish = whole["choices"][0]["finish_reason"]
    assert said["stop_reason"] == {**FINISHES, "tool_calls": "tool_use"}[finish]
    assert said["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 20,
        "output_tokens": 9,
    }


@given(answer=chat_answers(), size=st.integers(1, 40), includes_usage=st.booleans())
def test_a_stream_of_messages_says_what_the_whole_answer_says(
    *, answer: tuple[dict[str, Any], bytes], size: int, includes_usage: bool
) -> None:
    whole = json.loads(between("messages").whole(json.dumps(answer[0]).encode(), at=5))
    stream = through(between("messages"), answer[1])
    translation = between("chat_completions", includes_usage=includes_usage)
    said = json.loads(translation.whole(json.dumps(whole).encode(), at=5))
    (choice,) = said["choices"]
    data = through(translation, stream, size=size)
    assert data.endswith(b"data: [DONE]\n\n")
    found = gathered_chat(data)
    for message in (found["message"], choice["message"]):
        for call in message.get("tool_calls", ()):  # the spaces in them mean nothing
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert found == {
        "message": choice["message"],
        "finish_reason": choice["finish_reason"],
        "usage": said["usage"],
    }
    assert said["usage"]["prompt_tokens"] == 30


@pytest.mark.parametrize("asked", ["messages", "chat_completions"])
@pytest.mark.parametrize("at", range(0, 2000, 13))
def test_a_call_that_is_cut_anywhere_has_no_end(asked: ApiMode, at: int) -> None:
    call = ToolCall(name="Bash", arguments={"command": "echo one && echo two"})
    frames = chat_frames if asked == "messages" else anthropic_frames
    pieces = [text.encode() for _, text in frames(Answer(model="m", tool=call))]
    stream = b"".join(pieces)[:at]
    ends = (b"message_stop", b'stop_reason":"') if asked == "messages" else (b"[DONE]",)
    data = through(between(asked), stream)
    # The reason of the end is all that is required: what follows says no more of the answer.
    has_end = b'"finish_reason": "tool_calls"' in stream or b'"stop_reason": "tool_use"' in stream
    if not has_end:
        assert not any(end in data for end in ends)


def test_thoughts_are_shown_where_they_need_no_signature() -> None:
    stream = sse(
        {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "hm"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "SIGNED"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    )
    data = through(between("chat_completions"), stream)
    assert gathered_chat(data)["message"]["reasoning_content"] == "hm"
    assert b"SIGNED" not in data


def test_a_model_that_thinks_is_alive_and_shows_no_unsigned_thought() -> None:
    reader = between("messages").stream(at=5)
    reader.feed(sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    for name in ("reasoning_content", "reasoning"):
        data = reader.feed(sse({"choices": [{"delta": {name: "hm"}}]}))
        (event,) = events_in(data)
        assert event["type"] == "message_delta"
        assert event["delta"]["stop_reason"] is None
        assert b"hm" not in data


def test_calls_that_share_an_index_and_differ_in_their_ids_are_two() -> None:
    calls = [
        {"index": 0, "id": f"functions.f:{at}", "function": {"name": "f", "arguments": "{}"}}
        for at in range(2)
    ]
    stream = sse(
        *({"choices": [{"delta": {"tool_calls": [one]}}]} for one in calls),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
    message = gathered(through(between("messages"), stream))
    assert len({one["id"] for one in message["content"]}) == 2
    assert all(":" not in one["id"] and "." not in one["id"] for one in message["content"])
    assert message["stop_reason"] == "tool_use"


ENDS_BADLY = [
    sse({"error": {"message": "full", "type": "overloaded_error"}}),
    b"data: {no\n\n",
    b"<html>\n\n",
    b"event: error\ndata: gone\n\n",
]


@pytest.mark.parametrize("bad", ENDS_BADLY)
@pytest.mark.parametrize("asked", ["messages", "chat_completions"])
def test_an_error_in_the_middle_is_told_in_the_callers_words_and_ends_it(
    asked: ApiMode, bad: bytes
) -> None:
    frames = chat_frames if asked == "messages" else anthropic_frames
    pieces = [text.encode() for _, text in frames(Answer(model="m"))]
    data = through(between(asked), b"".join([*pieces[:4], bad, *pieces[4:]]))
    last = list(events_in(data))[-1]
    assert last["error"]["message"]
    assert (last.get("type") == "error") == (asked == "messages")


@pytest.mark.parametrize("word", ["error", "network_error", "abort"])
def test_an_end_that_is_no_end_is_an_error(word: str) -> None:
    said = {"choices": [{"delta": {"content": "a"}}]}
    end = {"choices": [{"delta": {}, "finish_reason": word}]}
    data = through(between("messages"), sse(said, end))
    assert [*events_in(data)][-1]["type"] == "error"
    whole = {"choices": [{"message": {"content": "a"}, "finish_reason": word}]}
    body = json.dumps(whole).encode()
    assert between("messages").whole(body, at=5) == body


def test_an_answer_of_too_many_parts_ends_with_an_error_in_both_apis() -> None:
    def chat(number: int) -> dict[str, Any]:
        call = {"index": number, "id": f"c{number}", "function": {"name": "f", "arguments": "{}"}}
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    def messages(number: int) -> dict[str, Any]:
        block = {"type": "tool_use", "id": f"c{number}", "name": "f", "input": {}}
        return {"type": "content_block_start", "index": number, "content_block": block}

    for asked, piece in ("messages", chat), ("chat_completions", messages):
        reader = between(asked).stream(at=5)
        said = b"".join(reader.feed(sse(piece(number))) for number in range(1_001))
        assert b"more than 1000 parts" in said
        assert reader.is_over
        assert reader.feed(sse(piece(1_001))) == b""


def test_calls_that_wait_for_the_one_before_them_have_a_bound() -> None:
    reader = between("messages").stream(at=5)
    text = "x" * 1_000_000

    def piece(index: int, arguments: str) -> bytes:
        call = {"index": index, "function": {"name": "f", "arguments": arguments}}
        return reader.feed(sse({"choices": [{"delta": {"tool_calls": [call]}}]}))

    piece(0, "{")
    said = [piece(1, text) for _ in range(40)]
    assert reader.is_over
    assert b"too large" in b"".join(said)


def test_an_error_is_told_in_the_callers_words() -> None:
    body = json.dumps({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}).encode()
    made = json.loads(between("messages").error(body, status=429))
    assert made == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down"},
    }
    made = json.loads(between("chat_completions").error(json.dumps(made).encode(), status=429))
    assert made["error"]["message"] == "slow down"
    assert made["error"]["type"] == "rate_limit_error"
    page = json.loads(between("chat_completions").error(b"<html>bad gateway", status=502))
    assert page["error"]["message"] == "<html>bad gateway"
