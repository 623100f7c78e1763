"""What a request keeps on its way through, and what is read of the answer."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.provider_frames import (
    Answer,
    anthropic_frames,
    chat_frames,
    google_frames,
    responses_frames,
)

from fallbackd.backends.passage import (
    MODES,
    AnswerWatch,
    Unreadable,
    error_body,
    error_event,
    forwarded,
    read_body,
    with_model,
)
from fallbackd.backends.spec import ApiMode
from fallbackd.core.protocol import HttpResponse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "a", 'b"', "c\\"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.sampled_from(["a", 'm"', "messages"]), JSON, max_size=3),
    behind=st.dictionaries(st.sampled_from(["z", "tools"]), JSON, max_size=2),
    old=st.text(max_size=8),
    new=st.text(min_size=1, max_size=8),
    indent=st.sampled_from([None, 2]),
)
def test_another_model_changes_no_other_byte(
    before: dict[str, object],
    behind: dict[str, object],
    old: str,
    new: str,
    indent: int | None,
) -> None:
    body = json.dumps({**before, "model": old, **behind}, indent=indent).encode()
    made = with_model(body, new)
    assert json.loads(made) == {**before, "model": new, **behind}
    value = json.dumps(old).encode()
    kept = [body[:at] + body[at + len(value) :] for at in _places(body, value)]
    spliced = json.dumps(new, ensure_ascii=False).encode()
    left = [made[:at] + made[at + len(spliced) :] for at in _places(made, spliced)]
    assert set(kept) & set(left)


def _places(text: bytes, part: bytes) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(part, at)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"model":7}',
        b'{"model":"a","model":"b"}',
        b'{"model":"a","x":"1","x":"23"}',
        b'{"x":"1","model":"a","x":"model"}',
    ],
)
def test_a_body_whose_model_cannot_be_replaced_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        with_model(body, "m")


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (b'{"messages":[{"model":"x"}]}', b'{"model":"m","messages":[{"model":"x"}]}'),
        (b' {\n "a": 1}', b' {"model":"m",\n "a": 1}'),
        (b"{ }", b'{"model":"m" }'),
        (b'{"a":[],"mod\\u0065l":"a"}', b'{"a":[],"mod\\u0065l":"m"}'),
        (b'{"a":[null],"model": null}', b'{"a":[null],"model": "m"}'),
        (b'{"user":"model","model":"a"}', b'{"user":"model","model":"m"}'),
        (
            b'\n{"\\u00e9\\"" : [1 ] , "model"\t:"a" }\n',
            b'\n{"\\u00e9\\"" : [1 ] , "model"\t:"m" }\n',
        ),
    ],
)
def test_a_body_that_names_no_model_names_it_and_no_other_byte_changes(
    body: bytes, made: bytes
) -> None:
    assert with_model(body, "m") == made


@pytest.mark.parametrize("body", [b"\xff", b"not json", b'{"stream":"yes"}', b"[" * 100_000])
def test_what_is_no_request_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(Unreadable, match="not a request"):
        read_body(body)


def test_logins_and_what_is_about_one_connection_stay_here() -> None:
    given_headers = [
        ("authorization", "Bearer t"),
        ("x-api-key", "t"),
        ("x-goog-api-key", "t"),
        ("connection", "close, x-odd"),
        ("x-odd", "1"),
        ("x-fallbackd-chain", "team"),
        ("sec-fetch-mode", "cors"),
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("x-unknown", "kept"),
    ]
    assert forwarded(given_headers) == {"anthropic-beta": "a, b", "x-unknown": "kept"}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_no_api_takes_our_event_for_an_end_or_our_error_for_an_answer(mode: ApiMode) -> None:
    watch = AnswerWatch(mode)
    watch.feed(error_event(mode, "it broke off"))
    assert watch.has_failed
    assert not watch.has_ended
    whole = AnswerWatch(mode)
    whole.feed(json.dumps(error_body(mode, 503, "no", "unavailable")).encode())
    assert whole.finish(HttpResponse(status=200, gone=True)) is not None


def test_a_count_of_tokens_before_the_first_word_begins_no_answer() -> None:
    watch = AnswerWatch("chat_completions")
    opened = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    used = {"usage": {"prompt_tokens": 10, "completion_tokens": 0}}
    watch.feed(b"data: " + json.dumps({**opened, **used}).encode() + b"\n\n")
    assert not watch.is_committed
    said = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    watch.feed(b"data: " + json.dumps({**said, **used}).encode() + b"\n\n")
    assert watch.is_committed


THOUGHTS: dict[ApiMode, dict[str, object]] = {
    "chat_completions": {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    "responses": {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
    "messages": {
        "type": "content_block_delta",
        "delta": {"type": "thinking_delta", "thinking": "hm"},
    },
    "generate_content": {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}]}}]},
}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_what_a_model_thinks_begins_an_answer_unless_its_text_is_waited_for(mode: ApiMode) -> None:
    thought = b"data: " + json.dumps(THOUGHTS[mode]).encode() + b"\n\n"
    for waits in (False, True):
        watch = AnswerWatch(mode, waits_for_text=waits)
        watch.feed(thought)
        assert watch.is_committed is not waits
        watch.feed(STREAMS[mode])
        assert watch.is_committed


ANSWER = Answer(model="m")
STREAMS: dict[ApiMode, bytes] = {
    mode: "".join(text for _, text in frames(ANSWER)).encode()
    for mode, frames in {
        "chat_completions": chat_frames,
        "responses": responses_frames,
        "messages": anthropic_frames,
        "generate_content": google_frames,
    }.items()
}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_stream_that_is_cut_at_any_byte_is_no_answer_before_its_end_is_said(
    mode: ApiMode,
) -> None:
    stream = STREAMS[mode]
    whole = AnswerWatch(mode)
    whole.feed(stream)
    assert whole.finish(HttpResponse(status=200, gone=True)) is None
    assert whole.is_committed
    for at in range(len(stream)):
        watch = AnswerWatch(mode)
        watch.feed(stream[:at])
        said = AnswerWatch(mode)
        said.feed(stream[:at] + b"\n\n")  # the blank line behind the last event may be missing
        evidence = watch.finish(HttpResponse(status=200, truncated=True, gone=True))
        assert evidence is not None or said.has_ended


def _endless(mode: ApiMode, number: int) -> list[dict[str, object]]:
    """Pieces that an answer may be made of without an end, each with a text of its own."""
    text = f"{number} " + "x" * 100
    match mode:
        case "chat_completions":
            deltas: list[dict[str, object]] = [{"content": text}, {"refusal": text}]
            return [
                {"choices": [{"index": at, "delta": delta, "finish_reason": None}]}
                for delta in deltas
                for at in (0, number)
            ]
        case "responses":
            item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
            return [
                {"type": "response.output_text.delta", "output_index": 0, "delta": text},
                {"type": "response.output_text.delta", "output_index": number, "delta": text},
                {"type": "response.refusal.delta", "output_index": 0, "delta": text},
                {"type": "response.output_item.done", "output_index": number, "item": item},
            ]
        case "messages":
            delta = {"type": "text_delta", "text": text}
            return [{"type": "content_block_delta", "index": number, "delta": delta}]
        case _:
            content = {"parts": [{"text": text}]}
            return [{"candidates": [{"index": at, "content": content}]} for at in (0, number)]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_what_is_kept_of_an_endless_answer_has_a_bound(mode: ApiMode) -> None:
    watch = AnswerWatch(mode)
    numbers = iter(range(1, 10_000))

    def goes_on(rounds: int) -> int:
        for _ in range(rounds):
            for one in _endless(mode, next(numbers)):
                watch.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
        return len(pickle.dumps(watch))

    kept = goes_on(1_200)
    assert goes_on(1_000) - kept < 100_000
    assert watch.is_committed
    assert not watch.has_failed


@pytest.mark.parametrize("repeated", [100_000, 99_999])
def test_a_long_answer_is_compared_with_its_repetition_by_length(repeated: int) -> None:
    watch = AnswerWatch("responses")
    for _ in range(1_000):
        piece = {"type": "response.output_text.delta", "output_index": 0, "delta": "x" * 100}
        watch.feed(b"data: " + json.dumps(piece).encode() + b"\n\n")
    item = {"type": "message", "content": [{"type": "output_text", "text": "x" * repeated}]}
    end = {"status": "completed", "output": [item]}
    last = {"type": "response.completed", "response": end}
    watch.feed(b"data: " + json.dumps(last).encode() + b"\n\n")
    evidence = watch.finish(HttpResponse(status=200, gone=True))
    assert (evidence is None) is (repeated == 100_000)
