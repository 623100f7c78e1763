"""An answer over HTTP is whole or it is none: cut, damaged or held up at any byte."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.other_json import leaves, replaced
from tests.support.provider_answers import Stream, stream, whole
from tests.support.provider_frames import TEXT, Answer
from tests.support.provider_refusals import Dialect

from fallbackd.backends import KINDS
from fallbackd.backends.http_calls import parser_of
from fallbackd.backends.spec import ApiMode
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    Chunk,
    Evidence,
    GivenUp,
    HttpResponse,
    Observation,
    Outcome,
    Reply,
)
from fallbackd.core.watch import Watch, see

DIALECTS: dict[Dialect, ApiMode] = {
    "chat": "chat_completions",
    "responses": "responses",
    "anthropic": "messages",
    "google": "generate_content",
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
SHORT = "one two three"
BAD = (b"\x00", b"\xff", b"\x1f", b"\n")
"""What no text of JSON holds."""
SIGNS = {
    "chat": '"finish_reason": "stop"',
    "responses": "event: response.completed",
    "anthropic": '"stop_reason": "end_turn"',
    "google": '"finishReason": "STOP"',
}
"""What an event holds that says that the answer is complete."""
PINGS = {
    "chat": ['data: {"choices": [{"delta": {"content": ""}}]}\n\n', 'data: {"choices": []}\n\n'],
    "responses": ['data: {"type": "response.in_progress", "response": {}}\n\n'],
    "anthropic": ['event: ping\ndata: {"type": "ping"}\n\n'],
    "google": ['data: {"candidates": [{"content": {"parts": [{"text": ""}]}}]}\n\n'],
}
"""Besides what means nothing in any event stream."""
IDLE = [": keepalive\n\n", ":\n", "\n\n", "data: {}\n\n", "data:\n\n", "id: 7\nretry: 100\n\n"]
DAMAGE = {
    "cut JSON": 'data: {"choices": [{"delta": {"cont\n\n',
    "the rest of some JSON": 'data: tent": "half"}}]}\n\n',
    "a page as data": "data: <html><body>502 Bad Gateway</body></html>\n\n",
    "a page": "<html>\n<body>502 Bad Gateway</body>\n</html>\n\n",
    "the words of a proxy": "upstream connect error or disconnect: reset reason: timeout\n\n",
    "the words of a proxy as data": "data: upstream connect error\n\n",
    "an error with words": "event: error\ndata: upstream connect error\n\n",
    "an error with JSON": 'event: error\ndata: {"message": "it broke", "code": 500}\n\n',
    "an error without words": "event: error\n\n",
    "an error as JSON": 'data: {"error": {"message": "it broke"}}\n\n',
    "an error of a gateway": 'data: {"message": "upstream timed out", "code": 504}\n\n',
    "a bare word": "data: 3\n\n",
}


def frames(dialect: Dialect, **fields: Any) -> Stream:
    return stream(dialect, Answer(model="m", **fields))


def read(dialect: Dialect, *pieces: str | bytes, cut: bool = False) -> tuple[Outcome, list[Any]]:
    parser = parser_of(DIALECTS[dialect])
    seen: list[Observation] = []
    for piece in pieces:
        data = piece.encode() if isinstance(piece, str) else piece
        seen.extend(parser.feed(Chunk("http", data, 0.0)))
    return parser.finish(HttpResponse(status=200, truncated=cut, gone=True)), seen


def reason_of(outcome: Outcome, kind: str = "openai-http") -> str | None:
    assert isinstance(outcome, Evidence), outcome
    found = classify(outcome, KINDS[kind].rules, now=0.0)
    return None if found is None else found.reason.value


@every_dialect
@pytest.mark.parametrize("name", DAMAGE)
def test_an_answer_with_a_damaged_piece_is_none(dialect: Dialect, name: str) -> None:
    found = frames(dialect)
    outcome, seen = read(dialect, *found.head, DAMAGE[name], *found.tail[1:])
    assert reason_of(outcome) in ("server_error", "timeout", "unknown")
    assert any(isinstance(one, GivenUp) for one in seen)  # at once, not at the end
    assert isinstance(outcome, Evidence)
    assert "PONG" not in outcome.text  # no piece of the answer is evidence
    assert outcome.answered


@every_dialect
def test_a_piece_over_the_limit_is_not_left_out(dialect: Dialect) -> None:
    found = frames(dialect)
    long = 'data: {"x": "' + "x" * (33 * 1024 * 1024) + '"}\n\n'
    outcome, _ = read(dialect, *found.head, long, *found.tail[1:])
    assert reason_of(outcome) == "server_error"


@every_dialect
def test_a_piece_of_ten_megabytes_is_read(dialect: Dialect) -> None:
    text = "long_" * 2_000_000 + "end"
    found = frames(dialect, text=text)
    outcome, _ = read(dialect, *found.head, *found.tail)
    assert isinstance(outcome, Reply)
    assert len(outcome.text) == len(text)


@every_dialect
@pytest.mark.parametrize("cut", [True, False])
def test_cut_at_any_byte_it_is_whole_or_none(dialect: Dialect, cut: bool) -> None:
    found = frames(dialect, text=SHORT)
    whole = "".join((*found.head, *found.tail)).encode()
    sign = next(one for one in (*found.head, *found.tail) if SIGNS[dialect] in one)
    end = whole.index(sign.encode()) + len(sign.encode().rstrip())
    for size in range(len(whole)):
        outcome, _ = read(dialect, whole[:size], cut=cut)
        # Google's word for an end may come with each piece: how the body ends counts too.
        if size < end or (cut and dialect == "google"):
            assert isinstance(outcome, Evidence), size
        else:
            assert isinstance(outcome, Reply), size
            assert outcome.text == SHORT


OTHER_PIECES = {
    "sound": ("chat", {"choices": [{"delta": {"audio": {"data": "QUJD", "transcript": "a"}}}]}),
    "pictures": ("chat", {"choices": [{"delta": {"content": "", "images": [{"type": "url"}]}}]}),
    "a picture": (
        "google",
        {"candidates": [{"content": {"parts": [{"inlineData": {"data": "QUJD"}}]}}]},
    ),
    "code that was run": (
        "google",
        {"candidates": [{"content": {"parts": [{"executableCode": {"code": "1"}}]}}]},
    ),
}


@pytest.mark.parametrize("name", OTHER_PIECES)
def test_a_piece_that_is_no_text_is_a_piece_of_the_answer(name: str) -> None:
    dialect, value = OTHER_PIECES[name]
    parser = parser_of(DIALECTS[dialect])  # type: ignore[index]  # a literal
    for _ in range(2):
        assert parser.feed(Chunk("http", f"data: {json.dumps(value)}\n\n".encode(), 0.0))
    assert parser.has_said


def test_a_piece_that_only_names_its_speaker_is_none() -> None:
    parser = parser_of("chat_completions")
    delta = {"role": "assistant", "content": "", "name": "m", "audio": None, "annotations": []}
    event = json.dumps({"choices": [{"delta": delta}]})
    parser.feed(Chunk("http", f"data: {event}\n\n".encode(), 0.0))
    assert not parser.has_said


def piece(dialect: str, index: int, text: str, *, ends: bool = False) -> bytes:
    """Of one of several answers that a caller wants at once."""
    if dialect == "chat":
        finish = "stop" if ends else None
        one: Any = {"index": index, "delta": {"content": text}, "finish_reason": finish}
        return f"data: {json.dumps({'choices': [one]})}\n\n".encode()
    one = {"index": index, "content": {"parts": [{"text": text}]}}
    one |= {"finishReason": "STOP"} if ends else {}
    return f"data: {json.dumps({'candidates': [one]})}\n\n".encode()


@pytest.mark.parametrize("dialect", ["chat", "google"])
def test_several_answers_have_ended_when_each_of_them_has(dialect: Dialect) -> None:
    begun = piece(dialect, 0, "a", ends=True), piece(dialect, 1, "b")
    for pieces in (begun, begun[::-1], (b"".join(begun),)):
        assert reason_of(read(dialect, *pieces)[0]) == "network"
        ended, _ = read(dialect, *pieces, piece(dialect, 1, "c", ends=True))
        assert isinstance(ended, Reply)


@pytest.mark.parametrize("dialect", ["chat", "google"])
def test_of_several_answers_in_one_body_none_may_lack_its_end(dialect: Dialect) -> None:
    name, word = ("choices", "finish_reason")
    one: Any = {"message": {"content": "a"}, "finish_reason": "stop"}
    if dialect == "google":
        name, word = ("candidates", "finishReason")
        one = {"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}
    assert isinstance(read(dialect, json.dumps({name: [one, one]}))[0], Reply)
    for bad, reason in ((None, "network"), ("error", "server_error")):
        for both in ([one, one | {word: bad}], [one | {word: bad}, one]):
            assert reason_of(read(dialect, json.dumps({name: both}))[0]) == reason


@every_dialect
def test_with_a_damaged_byte_anywhere_it_is_whole_or_none(dialect: Dialect) -> None:
    found = frames(dialect, text=SHORT)
    whole = "".join((*found.head, *found.tail)).encode()
    for at in range(len(whole)):
        bad = BAD[at % len(BAD)]
        outcome, _ = read(dialect, whole[:at] + bad + whole[at + 1 :])
        if isinstance(outcome, Reply):
            assert outcome.text == SHORT, at


@every_dialect
@given(st.data())
@settings(max_examples=80)
def test_with_foreign_bytes_in_it_it_is_whole_or_none(
    dialect: Dialect, data: st.DataObject
) -> None:
    """Something is put in, or stands in the place of a part, at any byte, cut into any pieces."""
    found = frames(dialect)
    whole = "".join((*found.head, *found.tail)).encode()
    at = data.draw(st.integers(0, len(whole)))
    lost = data.draw(st.integers(0, 200))
    foreign = data.draw(
        st.sampled_from(
            [
                b"\n\n<html>\n502\n</html>\n\n",
                b"upstream connect error\n\n",
                b"\ndata: {\n\n",
                b"\nevent: error\ndata: no\n\n",
                b"\xff\xfe",
                b"\x00" * 8,
            ]
        )
    )
    spoiled = whole[:at] + foreign + whole[at + lost :]
    size = data.draw(st.integers(1, 300))
    pieces = [spoiled[start : start + size] for start in range(0, len(spoiled), size)]
    outcome, _ = read(dialect, *pieces)
    if isinstance(outcome, Reply):
        assert outcome.text == TEXT


@every_dialect
def test_only_pieces_of_the_answer_are_a_sign_of_life_once_it_has_begun(dialect: Dialect) -> None:
    found = frames(dialect)
    parser = parser_of(DIALECTS[dialect])
    watch = Watch(started_at=0.0)

    def heard(event: str | int, *, at: float) -> float | None:
        nonlocal watch
        data = event.encode() if isinstance(event, str) else bytes([event])
        for one in parser.feed(Chunk("http", data, at)):
            watch = see(watch, one, now=at)
        return watch.last_output_at

    assert heard(": waiting\n\n", at=1.0) == 1.0  # before it has begun it is
    for number, piece in enumerate((*found.head, *found.tail[:2])):
        begun_at = 10.0 + 100.0 * number
        heard(piece, at=begun_at)
        if watch.answered_at is None:
            continue
        assert watch.last_output_at == begun_at
        for ping in (*IDLE, *PINGS[dialect]):
            for byte in ping.encode():
                assert heard(byte, at=begun_at + 50.0) == begun_at


@every_dialect
def test_pings_between_the_pieces_change_nothing(dialect: Dialect) -> None:
    found = frames(dialect)
    pings = "".join((*IDLE, *PINGS[dialect]))
    outcome, _ = read(dialect, *(one + pings for one in (*found.head, *found.tail)))
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT


@every_dialect
def test_what_comes_behind_the_end_is_no_part_of_the_answer(dialect: Dialect) -> None:
    found = frames(dialect)
    more = (*found.head, "data: [DONE]\n\n", "garbage\n\n", "event: error\ndata: late\n\n")
    outcome, seen = read(dialect, *found.head, *found.tail, "data: [DONE]\n\n", *more)
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT
    assert not any(isinstance(one, GivenUp) for one in seen)


@every_dialect
def test_done_alone_is_not_the_end_of_an_answer(dialect: Dialect) -> None:
    found = frames(dialect)
    outcome, _ = read(dialect, *found.head, "data: [DONE]\n\n", *found.tail)
    assert reason_of(outcome) == "network"


def chat(*deltas: dict[str, Any], finish: str = "stop") -> str:
    choices = [*({"delta": delta} for delta in deltas), {"delta": {}, "finish_reason": finish}]
    return "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in choices)


def messages(*events: dict[str, Any]) -> str:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)


CALL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "sh", "arguments": "{}"}}]}
SAID = {"content": "Let me run that."}
BLOCK = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Let me see."}}
PAUSED = {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}
CALLED = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
STOP = {"type": "message_stop"}
GOOGLE_CALL = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Let me"}, {"functionCall": {"name": "sh"}}]},
            "finishReason": "STOP",
        }
    ]
}
RESPONSE_CALL = {
    "type": "response.completed",
    "response": {
        "status": "completed",
        "output": [
            {"type": "message", "content": [{"type": "output_text", "text": "Let me"}]},
            {"type": "function_call", "name": "sh"},
        ],
    },
}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", chat(SAID, CALL, finish="tool_calls")),
        ("chat", chat(SAID, CALL, finish="stop")),
        ("chat", chat(SAID, finish="tool_calls")),
        ("chat", json.dumps({"choices": [{"message": SAID, "finish_reason": "tool_calls"}]})),
        ("chat", json.dumps({"choices": [{"message": SAID | CALL, "finish_reason": "stop"}]})),
        ("anthropic", messages(BLOCK, PAUSED, STOP)),
        ("anthropic", messages(BLOCK, CALLED, STOP)),
        ("google", f"data: {json.dumps(GOOGLE_CALL)}\n\n"),
        ("google", json.dumps(GOOGLE_CALL)),
        ("responses", f"data: {json.dumps(RESPONSE_CALL)}\n\n"),
    ],
)
def test_words_before_a_call_that_nothing_answers_are_no_answer(
    dialect: Dialect, body: str
) -> None:
    outcome, _ = read(dialect, body)
    assert isinstance(outcome, Evidence)
    found = classify(outcome, KINDS["openai-http"].rules, now=0.0)
    assert found is not None
    assert (found.reason, found.detail) == ("empty_result", "unfinished")


def test_an_agent_that_ran_its_own_tools_has_answered() -> None:
    outcome, _ = read("chat", chat(SAID, CALL, {"content": " Done: 3 files."}))
    assert outcome == Reply(text="Let me run that. Done: 3 files.")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", {"choices": [{"message": {"content": "half"}}]}),
        ("chat", {"choices": [{"message": {"content": "half"}, "finish_reason": None}]}),
        ("anthropic", {"content": [{"type": "text", "text": "half"}], "stop_reason": None}),
        ("google", {"candidates": [{"content": {"parts": [{"text": "half"}]}}]}),
        (
            "responses",
            {"output": [{"type": "message", "content": [{"type": "output_text", "text": "half"}]}]},
        ),
    ],
)
def test_a_body_that_does_not_say_why_it_ends_is_no_answer(dialect: Dialect, body: Any) -> None:
    assert reason_of(read(dialect, json.dumps(body))[0]) == "network"


def test_a_message_that_stops_without_a_reason_is_no_answer() -> None:
    assert reason_of(read("anthropic", messages(BLOCK, STOP))[0]) == "network"


def response(*deltas: str, whole: str | None, done: str | None = None) -> str:
    events: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", "output_index": 0, "delta": one} for one in deltas
    ]

    def item(text: str) -> dict[str, Any]:
        return {"type": "message", "content": [{"type": "output_text", "text": text}]}

    if done is not None:
        ended = {"type": "response.output_item.done", "output_index": 0, "item": item(done)}
        events.append(ended)
    output = [] if whole is None else [item(whole)]
    final = {"status": "completed", "output": output}
    events.append({"type": "response.completed", "response": final})
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events)


def test_a_lost_piece_of_a_response_is_taken_from_its_repetition() -> None:
    assert read("responses", response("one ", "three", whole="one two three"))[0] == Reply(
        text="one two three"
    )
    lost = response("one ", "three", whole=None, done="one two three")
    assert read("responses", lost)[0] == Reply(text="one two three")
    assert read("responses", response("one ", "two", whole=None))[0] == Reply(text="one two")


def test_a_response_whose_repetition_is_shorter_is_damaged() -> None:
    assert reason_of(read("responses", response("one ", "two", whole="one "))[0]) == "server_error"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("model_length", "context_overflow"),
        ("insufficient_system_resource", "overloaded"),
        ("network_error", "server_error"),
        ("MAX_TOKENS", "format_error"),
        ("RECITATION", "content_policy"),
        ("OTHER", "server_error"),
    ],
)
def test_the_words_of_vendors_for_an_end_are_known(finish: str, reason: str) -> None:
    assert reason_of(read("chat", chat(SAID, finish=finish))[0]) == reason


def test_a_prompt_that_google_blocks_is_a_matter_of_policy() -> None:
    body = json.dumps({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
    assert reason_of(read("google", body)[0], "google-http") == "content_policy"


@pytest.mark.parametrize("new", [None, [], {}, 7, "odd"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_field_of_another_type_is_read_as_one_that_is_missing(
    dialect: Dialect, new: object
) -> None:
    answer = whole(dialect, Answer(model="m"))
    for place in leaves(answer):
        read(dialect, json.dumps(replaced(answer, place, new)))
    made = stream(dialect, Answer(model="m"))
    for frame in {*made.head, *made.tail}:
        begin, _, data = frame.partition("data: ")
        value = {} if "[DONE]" in data else json.loads(data)
        for place in leaves(value):
            read(dialect, f"{begin}data: {json.dumps(replaced(value, place, new))}\n\n")


def test_a_generation_that_broke_is_one_also_where_its_connection_broke_then() -> None:
    made = frames("google")
    broken = "".join((*made.head, *made.tail)).replace('"STOP"', '"network_error"')
    for cut in (False, True):
        found, _ = read("google", broken, cut=cut)
        assert isinstance(found, Evidence)
        assert found.code == "broken_generation"
