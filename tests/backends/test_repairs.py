"""Refusals of the form of a request, as providers word them, and what is changed for each."""

import json
from typing import Any

import pytest

from fallbackd.backends.repairs import Repair, Sendable, proposed, without_known, words_of
from fallbackd.backends.spec import ApiMode
from fallbackd.core.protocol import Evidence

CHAT: dict[str, Any] = {
    "model": "m",
    "max_tokens": 128000,
    "temperature": 0.2,
    "top_p": 0.9,
    "parallel_tool_calls": True,
    "stream_options": {"include_usage": True},
    "presence_penalty": 0,
    "messages": [
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 128000,
    "temperature": 1,
    "top_p": 0.9,
    "context_management": {"edits": []},
    "output_config": {"effort": "high"},
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "t", "defer_loading": True, "input_schema": {"properties": {}}}],
    "messages": [{"role": "user", "content": "one"}, {"role": "system", "content": "later"}],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [{"role": "developer", "content": "d"}],
    "temperature": 0.2,
    "reasoning": {"effort": "high", "summary": "auto"},
}
GOOGLE: dict[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": "t"}]}],
    "generationConfig": {"temperature": 1, "thinkingConfig": {"thinkingLevel": "high"}},
}
BODIES: dict[ApiMode, dict[str, Any]] = {
    "chat_completions": CHAT,
    "messages": MESSAGES,
    "responses": RESPONSES,
    "generate_content": GOOGLE,
}


def openai(message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"error": error}


def anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def google(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


USE_OTHER = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
NO_VALUE = (
    "Unsupported value: 'temperature' does not support 0.2 with this model. "
    "Only the default (1) value is supported."
)
WORDED: list[tuple[ApiMode, Any, str]] = [
    ("chat_completions", openai(USE_OTHER, "unsupported_parameter", "max_tokens"),
     "max_tokens as max_completion_tokens"),
    ("chat_completions", {"error": {"message": "Provider returned error", "code": 400,
     "metadata": {"raw": json.dumps(openai(USE_OTHER))}}}, "max_tokens as max_completion_tokens"),
    ("chat_completions", openai("[openai/gpt-5.4] [400]: " + json.dumps(openai(USE_OTHER))),
     "max_tokens as max_completion_tokens"),
    ("chat_completions", openai("max_tokens is too large: 128000. This model supports at most "
     "16384 completion tokens, whereas you provided 128000."), "max_tokens as 16384"),
    ("chat_completions", openai("Invalid max_tokens value, the valid range of max_tokens is "
     "[1, 8192]"), "max_tokens as 8192"),
    ("chat_completions", openai("`max_tokens` must be less than or equal to `32768`, the maximum "
     "value for `max_tokens` is less than the `context_window`"), "max_tokens as 32768"),
    ("chat_completions", openai(NO_VALUE, "unsupported_value", "temperature"), "no temperature"),
    ("chat_completions", openai("invalid temperature: only 1 is allowed for this model"),
     "no temperature"),
    ("chat_completions", openai("Unrecognized request argument supplied: parallel_tool_calls"),
     "no parallel_tool_calls"),
    ("chat_completions", openai("Unknown parameter: 'parallel_tool_calls'.", "unknown_parameter"),
     "no parallel_tool_calls"),
    ("chat_completions", {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
     "msg": "Extra inputs are not permitted", "input": {}}]}, "no stream_options"),
    ("chat_completions", openai("Model grok-4 does not support parameter presencePenalty."),
     "no presence_penalty"),
    ("chat_completions", openai("Argument not supported on this model: presencePenalty"),
     "no presence_penalty"),
    ("chat_completions", openai("'messages.1' : for 'role:assistant' the following must be "
     "satisfied[('messages.1' : property 'reasoning_content' is unsupported)]"),
     "no reasoning_content"),
    ("chat_completions", openai("400 Extra inputs are not permitted, field: "
     "'messages[1].reasoning_content'"), "no reasoning_content"),
    ("chat_completions", openai("Invalid value: 'developer'. Supported values are: 'system', "
     "'assistant', 'user', 'function', and 'tool'.", "invalid_value", "messages[0].role"),
     "developer as system"),
    ("chat_completions", openai("Failed to deserialize the JSON body into the target type: "
     "messages[0].role: unknown variant `developer`, expected one of `system`, `user`"),
     "developer as system"),
    ("messages", anthropic("context_management: Extra inputs are not permitted"),
     "no context_management"),
    ("messages", anthropic("tools.0.custom.defer_loading: Extra inputs are not permitted"),
     "no defer_loading"),
    ("messages", anthropic("system.0.cache_control: Extra inputs are not permitted"),
     "no cache_control"),
    ("messages", anthropic("output_config.effort: Extra inputs are not permitted"),
     "no output_config.effort"),
    ("messages", anthropic("`temperature` and `top_p` cannot both be specified for this model. "
     "Please use only one."), "no top_p"),
    ("messages", anthropic("`temperature` is deprecated for this model."), "no temperature"),
    ("messages", anthropic("`top_p` must be greater than or equal to 0.95 or unset when thinking "
     "is enabled."), "no top_p"),
    ("messages", anthropic("max_tokens: 128000 > 64000, which is the maximum allowed number of "
     "output tokens for claude-sonnet-4-5"), "max_tokens as 64000"),
    ("messages", anthropic('messages: Unexpected role "system". The Messages API accepts a '
     "top-level `system` parameter, not \"system\" as an input message role."), "system as user"),
    ("responses", openai("Unsupported parameter: 'temperature' is not supported with this model.",
     None, "temperature"), "no temperature"),
    ("responses", openai("Unsupported parameter: 'reasoning.summary' is not supported with this "
     "model.", "unsupported_parameter", "reasoning.summary"), "no reasoning.summary"),
    ("generate_content", google('Invalid JSON payload received. Unknown name "thinkingConfig" at '
     "'generation_config': Cannot find field."), "no generationConfig.thinkingConfig"),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "error", "words"), WORDED)
def test_a_known_refusal_has_its_repair_and_nothing_else_changes(
    mode: ApiMode, error: Any, words: str
) -> None:
    body = json.dumps(BODIES[mode], indent=1).encode()
    refused = Evidence(stream="http", http_status=400, body=error)
    made, repairs = proposed(refused, Sendable(mode=mode, body=body))
    assert words_of(repairs) == words
    before, after = body.splitlines(), made.body.splitlines()
    assert len(set(after) - set(before)) <= 1  # the one that names or holds another value
    assert len(before) - len(after) <= 5
    assert json.loads(made.body) != json.loads(body)
    again, more = proposed(refused, made, without=frozenset(repairs))
    assert (again, more) == (made, ())


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported parameter: 'tools' is not supported with this model.",
        "Unsupported parameter: 'response_format' is not supported with this model.",
        "Unknown parameter: 'messages'.",
        "messages.0.content: Extra inputs are not permitted",
        "tools.0.function.parameters: Extra inputs are not permitted",
        "temperature must be between 0 and 2",
        "the user wrote: Unknown parameter 'n' and more",
        "Invalid schema for function 'Bash': 'exclusiveMinimum' is not permitted.",
    ],
)
def test_what_says_what_is_wanted_is_never_left_out(message: str) -> None:
    request = Sendable(mode="chat_completions", body=json.dumps(CHAT).encode())
    refused = Evidence(stream="http", http_status=400, body=openai(message))
    assert proposed(refused, request) == (request, ())


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(stream="http", http_status=500, body=openai(NO_VALUE)),
        Evidence(stream="http", http_status=429, body=openai(NO_VALUE)),
        Evidence(stream="http", http_status=400, body=openai(NO_VALUE), answered=True),
        Evidence(stream="http", http_status=200, text=NO_VALUE),
    ],
)
def test_only_a_refusal_before_the_answer_is_repaired(evidence: Evidence) -> None:
    request = Sendable(mode="chat_completions", body=json.dumps(CHAT).encode())
    assert proposed(evidence, request)[1] == ()


def test_a_body_that_names_a_field_twice_is_left_alone() -> None:
    request = Sendable(mode="chat_completions", body=b'{"temperature":1,"temperature":2}')
    refused = Evidence(stream="http", http_status=400, body=openai(NO_VALUE))
    assert proposed(refused, request) == (request, ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages":[{"role":"\xff"},{"role":"developer\xff","content":[7]}],"max_tokens":9}',
        b'{"messages":{"role":7},"max_tokens":' + b"9" * 5000 + b"}",
        b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize(("mode", "error", "words"), WORDED)
def test_a_body_of_another_shape_is_never_an_error_of_ours(
    mode: ApiMode, error: Any, words: str, body: bytes
) -> None:
    refused = Evidence(stream="http", http_status=400, body=error)
    made, _ = proposed(refused, Sendable(mode=mode, body=body))
    without_known(made, frozenset({b""}))


def test_a_refused_beta_leaves_the_header_and_the_others_stay() -> None:
    said = "Unexpected value(s) `new-2026-01-01` for the `anthropic-beta` header."
    request = Sendable(
        mode="messages", body=b"{}", headers={"anthropic-beta": "old-2025,new-2026-01-01", "x": "y"}
    )
    refused = Evidence(stream="http", http_status=400, body=anthropic(said))
    made, repairs = proposed(refused, request)
    assert made.headers == {"anthropic-beta": "old-2025", "x": "y"}
    assert words_of(repairs) == "no new-2026-01-01"


def thought(signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


FOREIGN: list[tuple[ApiMode, Any, bytes, bytes]] = [
    (
        "messages",
        anthropic("messages.1.content.0: Invalid `signature` in `thinking` block"),
        b'{"messages": [{"role":"user","content":"1"}, {"role": "assistant","content":'
        b' [{"type":"thinking","thinking":"h","signature":"x"}, {"type":"text", "text":"1"}]},'
        b'{"role":"assistant","content":[{"type":"redacted_thinking","data":"d"}]}] , "a":1.0}',
        b'{"messages": [{"role":"user","content":"1"}, {"role": "assistant","content":'
        b' [{"type":"text", "text":"1"}]}] , "a":1.0}',
    ),
    (
        "responses",
        openai(
            "The encrypted content gAAA...Spg= could not be verified. Reason: Encrypted content "
            "could not be decrypted or parsed.",
            "invalid_encrypted_content",
        ),
        b'{"include":["reasoning.encrypted_content"],"input":[{"role":"user"} ,'
        b'{"type":"reasoning","encrypted_content":"gAAA"}, {"type":"compaction",'
        b'"encrypted_content":"all"}]}',
        b'{"include":["reasoning.encrypted_content"],"input":[{"role":"user"}, '
        b'{"type":"compaction","encrypted_content":"all"}]}',
    ),
    (
        "generate_content",
        google("Invalid thought signature."),
        b'{"contents":[{"parts":[{"text":"1", "thoughtSignature":"c2ln"},{"text":"2"}]}]}',
        b'{"contents":[{"parts":[{"text":"1"},{"text":"2"}]}]}',
    ),
    (
        "generate_content",
        google("Function call is missing a thought_signature in functionCall parts."),
        b'{"contents":[{"parts":[{"functionCall":{"name":"f"}},{"text":"2"}]}]}',
        b'{"contents":[{"parts":[{"thoughtSignature":"skip_thought_signature_validator",'
        b'"functionCall":{"name":"f"}},{"text":"2"}]}]}',
    ),
    (
        "messages",
        anthropic("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but "
                  "found `tool_use`. When `thinking` is enabled, a final `assistant` message must "
                  "start with a thinking block"),
        b'{"thinking":{"type":"enabled"}, "messages":[]}',
        b'{"messages":[]}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "error", "body", "made"), FOREIGN)
def test_reasoning_of_another_provider_is_taken_out_and_every_other_byte_stays(
    mode: ApiMode, error: Any, body: bytes, made: bytes
) -> None:
    refused = Evidence(stream="http", http_status=400, body=error)
    found, repairs = proposed(refused, Sendable(mode=mode, body=body))
    assert found.body == made
    assert {one.about for one in repairs} == {"conversation"}


def test_only_the_reasoning_that_was_refused_is_taken_out_later() -> None:
    said = anthropic("messages.1.content.0: Invalid `signature` in `thinking` block")
    first = {"messages": [{"role": "assistant", "content": [thought("theirs"), {"type": "text"}]}]}
    request = Sendable(mode="messages", body=json.dumps(first).encode())
    refused, _ = proposed(Evidence(stream="http", http_status=400, body=said), request)
    later = {"messages": [*first["messages"], {"role": "assistant", "content": [thought("own")]}]}
    cleaned = without_known(
        Sendable(mode="messages", body=json.dumps(later).encode()), refused.foreign
    )
    assert json.loads(cleaned.body)["messages"] == [
        {"role": "assistant", "content": [{"type": "text"}]},
        {"role": "assistant", "content": [thought("own")]},
    ]


def test_of_two_repairs_that_undo_each_other_the_later_one_counts() -> None:
    one = Repair(act="rename", name="max_tokens", to="max_completion_tokens")
    other = Repair(act="rename", name="max_completion_tokens", to="max_tokens")
    assert one.subject == other.subject
