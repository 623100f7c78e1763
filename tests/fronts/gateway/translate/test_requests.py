"""Requests in the other API: what is said stays said, and what cannot be is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends.passage import Passage, Unreadable
from fallbackd.backends.spec import Options
from fallbackd.fronts.gateway.outgoing import HOP, OutwardCall, translated
from fallbackd.fronts.gateway.translate.translation import Target, Translation, begin

TARGET = Target(model="theirs", host="llm.example")
PIXEL = "iVBORw0KGgo="

WORDS = st.text("abc déü\n\"{}'", min_size=1, max_size=12).filter(lambda text: text.strip())
NAMES = st.text("abcXYZ019_-", min_size=1, max_size=20)
INPUTS = st.dictionaries(
    st.text("ab ", max_size=3),
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS | st.lists(WORDS, max_size=2),
    max_size=3,
)
IMAGES = st.sampled_from(
    [
        {"type": "base64", "media_type": "image/png", "data": PIXEL},
        {"type": "url", "url": "https://example.org/a.png"},
    ]
).map(lambda source: {"type": "image", "source": source})
TEXTS = WORDS.map(lambda text: {"type": "text", "text": text})


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    """A request of messages that chat completions can say without a loss."""
    turns: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": [draw(TEXTS)]}
            for id in open_calls
        ]
        said = draw(st.lists(TEXTS | IMAGES, min_size=0 if results else 1, max_size=3))
        turns.append({"role": "user", "content": results + said})
        open_calls = draw(st.lists(NAMES, max_size=3, unique=True))
        calls = [
            {"type": "tool_use", "id": id, "name": draw(NAMES), "input": draw(INPUTS)}
            for id in open_calls
        ]
        text = draw(st.lists(TEXTS, min_size=0 if calls else 1, max_size=1))
        turns.append({"role": "assistant", "content": text + calls})
    tools = [
        {"name": name, "description": draw(WORDS), "input_schema": {"type": "object", "x": name}}
        for name in draw(st.lists(NAMES, max_size=3, unique=True))
    ]
    request: dict[str, Any] = {"messages": turns, "max_tokens": draw(st.integers(1, 9999))}
    request |= draw(st.fixed_dictionaries({}, optional={"temperature": st.just(0.5)}))
    if draw(st.booleans()):
        request["system"] = [draw(TEXTS)]
    if tools:
        choices = [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "x"}]
        request |= {"tools": tools, "tool_choice": draw(st.sampled_from(choices))}
    return request


@given(conversations())
def test_a_conversation_comes_back_from_chat_completions_as_it_was(asked: dict[str, Any]) -> None:
    there = begin("messages", "chat_completions", json.dumps(asked).encode(), TARGET)
    back = begin("chat_completions", "messages", there.body, TARGET)
    assert (there.lost, back.lost) == ((), ())
    assert without_cache(json.loads(back.body)) == {**asked, "model": "theirs"}


@given(conversations())
def test_a_conversation_comes_back_from_messages_as_it_was(asked: dict[str, Any]) -> None:
    chat = begin("messages", "chat_completions", json.dumps(asked).encode(), TARGET).body
    there = begin("chat_completions", "messages", chat, TARGET)
    back = begin("messages", "chat_completions", there.body, TARGET)
    assert json.loads(back.body) == json.loads(chat)


def without_cache(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if name != "cache_control"}
        return {name: without_cache(one) for name, one in kept.items()}
    return [without_cache(one) for one in value] if isinstance(value, list) else value


def chat(**asked: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A request of messages, in chat completions."""
    made = begin("messages", "chat_completions", json.dumps(asked).encode(), TARGET)
    return json.loads(made.body), made.lost


def messages(**asked: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    made = begin("chat_completions", "messages", json.dumps(asked).encode(), TARGET)
    return json.loads(made.body), made.lost


def test_thoughts_and_their_signatures_never_leave() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "SIGNED"}
    hidden = {"type": "redacted_thinking", "data": "SEALED"}
    said = {"type": "text", "text": "yes"}
    made, lost = chat(
        messages=[{"role": "assistant", "content": [thought, hidden, said]}],
        thinking={"type": "enabled", "budget_tokens": 2000},
    )
    assert made["messages"] == [{"role": "assistant", "content": "yes"}]
    assert lost == ("redacted_thinking", "thinking (2)")
    back, lost = messages(
        messages=[{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    )
    assert back["messages"] == [{"role": "assistant", "content": [said]}]
    assert lost == ("reasoning_content",)


def test_what_claude_code_sends_reaches_chat_completions_and_the_rest_is_named() -> None:
    made, lost = chat(
        model="claude-x",
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be right."},
        ],
        messages=[
            {"role": "user", "content": "hello"},
            {"role": "system", "content": "The date has changed."},
        ],
        tools=[
            {"name": "Bash", "input_schema": {"type": "object"}, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        metadata={"user_id": "{}"},
        context_management={"edits": []},
        output_config={"effort": "high"},
        max_tokens=128000,
        stream=True,
    )
    assert made == {
        "model": "theirs",
        "messages": [
            {"role": "system", "content": "Be brief.\n\nBe right."},
            {"role": "user", "content": "hello"},
            {"role": "system", "content": "The date has changed."},
        ],
        "tools": [
            {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_tokens": 128000,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert lost == (
        "cache_control",
        "context_management",
        "defer_loading",
        "effort",
        "metadata",
        "tool web_search",
    )


def test_a_picture_in_the_result_of_a_tool_follows_it() -> None:
    picture = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "is_error": True,
        "content": [{"type": "image", "source": picture}],
    }
    made, lost = chat(messages=[{"role": "user", "content": [result]}])
    assert [one["role"] for one in made["messages"]] == ["tool", "user"]
    (part,) = made["messages"][1]["content"]
    assert part["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    assert lost == ("is_error",)


def test_results_of_parallel_calls_stand_in_one_message() -> None:
    calls = [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
        for id, arguments in (("functions.f:0", '{"a":1}'), ("call_2", ""), ("call_3", "[no"))
    ]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": f"r{at}"}
        for at, one in enumerate(calls)
    ]
    made, lost = messages(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *results,
            {"role": "user", "content": "and?"},
        ]
    )
    _, called, answered = made["messages"]
    ids = [one["id"] for one in called["content"]]
    assert ids[1:] == ["call_2", "call_3"]
    assert ids[0].startswith("call_")
    assert [one["tool_use_id"] for one in answered["content"][:3]] == ids
    assert answered["content"][3]["text"] == "and?"
    assert [one["input"] for one in called["content"]] == [{"a": 1}, {}, {"arguments": "[no"}]
    assert lost == ("arguments that are not a JSON object",)


def test_what_is_cached_there_is_marked() -> None:
    made, _ = messages(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ]
    )
    marked = [block["text"] for block in places(made) if "cache_control" in block]
    assert marked == ["Be brief.", "three"]


def places(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [*made["system"], *(one for turn in made["messages"] for one in turn["content"])]


@pytest.mark.parametrize(
    ("asked", "most", "host", "limit"),
    [
        ({"max_tokens": 128000}, None, "llm.example", {"max_tokens": 128000}),
        ({"max_tokens": 128000}, 16000, "llm.example", {"max_tokens": 16000}),
        ({"max_tokens": 100}, 16000, "api.openai.com", {"max_completion_tokens": 100}),
        ({}, None, "llm.example", {}),
    ],
)
def test_the_length_of_an_answer_is_what_the_backend_can_write(
    asked: dict[str, Any], most: int | None, host: str, limit: dict[str, int]
) -> None:
    body = json.dumps({"messages": [], **asked}).encode()
    target = Target(model="m", host=host, most_tokens=most)
    made = json.loads(begin("messages", "chat_completions", body, target).body)
    assert made == {"messages": [], "model": "m", **limit}


def test_messages_are_always_told_how_long_an_answer_may_be() -> None:
    assert messages(messages=[])[0]["max_tokens"] == 8192
    assert messages(messages=[], max_completion_tokens=77)[0]["max_tokens"] == 77


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"messages": {}}', b'{"messages": [{}]}'])
@pytest.mark.parametrize("asked", ["messages", "chat_completions"])
def test_what_is_no_request_is_refused(asked: Any, body: bytes) -> None:
    spoken: Any = "messages" if asked == "chat_completions" else "chat_completions"
    with pytest.raises(Unreadable):
        begin(asked, spoken, body, TARGET)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "source", "tool_calls", "function", "system"]
            ),
            inner | st.sampled_from(["user", "assistant", "tool", "text", "image", "tool_result"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(
    st.dictionaries(
        st.sampled_from(["messages", "system", "tools", "stop", "stop_sequences", "tool_choice"]),
        JSON,
    ),
    st.lists(JSON, max_size=3),
)
def test_no_shape_of_a_request_breaks_the_translation(
    asked: dict[str, Any], turns: list[Any]
) -> None:
    body = json.dumps({"messages": turns, **asked}).encode()
    for pair in (("messages", "chat_completions"), ("chat_completions", "messages")):
        try:
            made: Translation = begin(*pair, body, TARGET)  # type: ignore[arg-type]
        except Unreadable:
            continue
        assert isinstance(json.loads(made.body), dict)


def test_headers_of_the_one_api_do_not_reach_the_other() -> None:
    body = json.dumps({"messages": []}).encode()
    own = {"anthropic-version": "2023-06-01", "anthropic-beta": "x-1", "user-agent": "me"}
    call = OutwardCall(
        asked=Passage(mode="messages", model="m", is_streamed=True, query="beta=true"),
        model="theirs",
        headers={**own, HOP: "1"},
        body=body,
    )
    made = translated(call, "chat_completions", Options(base_url="https://llm.example/v1"))
    assert made.headers == {"user-agent": "me", HOP: "1", "content-type": "application/json"}
    assert (made.asked.mode, made.asked.query) == ("chat_completions", "")
