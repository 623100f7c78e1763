"""Answers that are cut or damaged anywhere, as a client library reads what is passed on of them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from msgspec import Struct
from tests.support.daemon import HANG_S
from tests.support.provider_frames import (
    TEXT,
    Answer,
    anthropic_frames,
    chat_frames,
    google_frames,
    responses_frames,
)

from fallbackd.backends.passage import (
    MAX_HELD_BYTES,
    MAX_HELD_EVENTS,
    MODES,
    AnswerWatch,
    Passage,
)
from fallbackd.backends.spec import ApiMode
from fallbackd.core.protocol import Evidence, HttpResponse, Usage
from fallbackd.fronts.gateway import relay as relaying
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, NotAnswered
from fallbackd.fronts.gateway.outgoing import TranslatedAnswer
from fallbackd.fronts.gateway.patience import Patience
from fallbackd.fronts.gateway.relay import Relay
from fallbackd.fronts.gateway.translate.translation import Target, begin
from fallbackd.ports.transport import PassedOn, TakePiece

STREAMS: dict[ApiMode, bytes] = {
    mode: "".join(text for _, text in frames(Answer(model="m"))).encode()
    for mode, frames in {
        "chat_completions": chat_frames,
        "responses": responses_frames,
        "messages": anthropic_frames,
        "generate_content": google_frames,
    }.items()
}


KEY = b"the-key-of-one"


class Arriving:
    """What a provider sends, and how that ends. See `ports.passing.PassedOn`."""

    def __init__(
        self,
        pieces: list[bytes],
        *,
        is_cut: bool,
        pause_s: float = 0,
        begun: anyio.Event | None = None,
    ) -> None:
        self._pieces = pieces
        self._begun = begun
        """Awaited before the last piece."""
        self._pause_s = pause_s
        self._end = HttpResponse(status=200, truncated=is_cut, gone=True)

    async def head(self) -> HttpResponse | None:
        return HttpResponse(status=200, headers={"content-type": "text/event-stream"}, gone=True)

    async def read(self) -> bytes | None:
        await anyio.sleep(self._pause_s)
        if self._begun is not None and len(self._pieces) == 1:
            await self._begun.wait()
        return self._pieces.pop(0) if self._pieces else None

    async def flow(self, take: TakePiece) -> bool:
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    @property
    def exit(self) -> HttpResponse:
        return self._end

    @property
    def stated(self) -> None:
        return None

    def masked(self, data: bytes) -> bytes:
        return data.replace(KEY, b"*" * len(KEY))

    async def aclose(self) -> None: ...


class Seen(Struct):
    """What reached the caller."""

    data: bytearray
    takes_pieces: bool = True
    has_left: bool = False
    is_said: bool = False
    """A word of the answer had come when it began."""
    begun: anyio.Event | None = None
    room: int = 1 << 30

    def holds(self, size: int) -> bool:
        return size <= self.room

    async def begin(self, reply: AnswerHead) -> None:
        assert reply.status == 200
        if self.begun is not None:
            self.begun.set()

    async def send(self, data: bytes) -> None:
        self.data += data

    def write(self, data: bytes) -> bool:
        self.data += data
        return True

    async def drained(self) -> None: ...


class ClientError(Exception):
    """What a client library raises."""


def read_as_a_client(mode: ApiMode, data: bytes) -> str:
    """
    The text, by the rules of the vendors' libraries: the end of the body is the end of the answer.

    Raises:
        ClientError: As the libraries do, for an error event and for what is no JSON.
    """
    text = ""
    for name, event in _events(data):
        kinds = {name, event.get("type"), event.get("object")}
        if kinds & {"error", "response.failed"} or event.keys() & {"error", "code"}:
            raise ClientError
        match mode:
            case "chat_completions":
                text += "".join(one["delta"].get("content") or "" for one in event["choices"])
            case "responses" if event.get("type") == "response.output_text.delta":
                text += event["delta"]
            case "messages" if event.get("type") == "content_block_delta":
                text += event["delta"].get("text", "")
            case "generate_content":
                parts = event["candidates"][0]["content"]["parts"]
                text += "".join(part.get("text", "") for part in parts)
    return text


def _events(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for block in data.split(b"\n\n"):
        name, value = "", b""
        for line in block.split(b"\n"):
            field, _, rest = line.partition(b":")
            if field == b"event":
                name = rest.strip().decode("utf-8", "replace")
            elif field == b"data":
                value += rest.strip()
        if value == b"[DONE]":
            return
        if value:
            try:
                yield name, json.loads(value)
            except ValueError as error:
                raise ClientError from error


async def outcome(
    mode: ApiMode,
    pieces: list[bytes],
    *,
    is_cut: bool,
    is_whole: bool,
    pause_s: float = 0,
    first_s: float = 60,
    spoken: ApiMode | None = None,
    may_think: bool = False,
    waits_for_text: bool = False,
    unsaid_s: float = 60,
    seen: Seen | None = None,
    failures: list[NotAnswered] | None = None,
) -> str:
    """
    `text` where the caller has an answer; `` where it has an error, or the next is asked.

    Args:
        spoken: The API of the pieces, where they are translated.
        seen: Takes what reaches the caller.
        failures: Takes why the next one is asked.
    """
    seen = seen or Seen(data=bytearray())
    marks: list[Evidence] = []

    async def broken(evidence: Evidence) -> None:
        marks.append(evidence)

    async def said(has_said: bool, used: Usage | None) -> list[tuple[str, str]]:
        seen.is_said = has_said
        return []

    relay = Relay(
        Passage(mode=mode, model="m", is_streamed=True),
        seen,
        Patience(
            first_s=first_s,
            stall_s=60,
            unsaid_s=unsaid_s,
            may_think=may_think,
            waits_for_text=waits_for_text,
        ),
        name="one",
        is_whole=is_whole,
        said=said,
        broken=broken,
    )
    try:
        arriving: PassedOn = Arriving(pieces, is_cut=is_cut, pause_s=pause_s, begun=seen.begun)
        if spoken is not None:
            request = json.dumps({"messages": []}).encode()
            translation = begin(mode, spoken, request, Target(model="m", host=""))
            arriving = TranslatedAnswer(arriving, translation, at=0)
        done = await relay.run(arriving)
    except Aborted:
        assert len(marks) == 1
        # Without the end of the chunks no library takes it for an answer; nor by its events.
        with pytest.raises(ClientError):
            read_as_a_client(mode, bytes(seen.data))
        return ""
    if isinstance(done, NotAnswered):
        assert not seen.data
        if failures is not None:
            failures.append(done)
        return ""
    assert isinstance(done, AnswerWatch)
    assert marks == []
    try:
        return read_as_a_client(mode, bytes(seen.data))
    except ClientError:  # the answer was said to be complete, and what follows it is damaged
        return ""


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("mode", sorted(MODES))
async def test_an_answer_that_is_cut_at_any_byte_is_whole_or_an_error(
    mode: ApiMode, *, is_whole: bool
) -> None:
    stream = STREAMS[mode]
    assert await outcome(mode, [stream], is_cut=False, is_whole=is_whole) == TEXT
    errors = 0
    for at in range(len(stream)):
        for is_cut in (True, False):
            before, last = stream[: at // 2], stream[at // 2 : at]
            text = await outcome(mode, [before, last], is_cut=is_cut, is_whole=is_whole)
            assert text in ("", TEXT), at
            errors += text == ""
    assert errors > len(stream)


def in_thirds(stream: bytes) -> list[bytes]:
    third = len(stream) // 3
    return [stream[:third], stream[third : 2 * third], stream[2 * third :]]


def in_events(stream: bytes) -> list[bytes]:
    """As nearly every provider sends them, one in each packet."""
    return [one + b"\n\n" for one in stream.split(b"\n\n") if one]


@pytest.mark.parametrize("cut", [in_thirds, in_events])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("mode", sorted(MODES))
async def test_an_answer_that_is_damaged_at_any_byte_is_whole_or_an_error(
    mode: ApiMode, cut: Callable[[bytes], list[bytes]], *, is_whole: bool
) -> None:
    stream = STREAMS[mode]
    errors = 0
    for at in range(len(stream)):
        spoiled = stream[:at] + b"\xff" + stream[at + 1 :]
        text = await outcome(mode, cut(spoiled), is_cut=False, is_whole=is_whole)
        assert text in ("", TEXT), (at, stream[max(0, at - 20) : at + 20])
        errors += text == ""
    assert errors > len(stream) // 2


PAIRS: tuple[tuple[ApiMode, ApiMode], ...] = (
    ("messages", "chat_completions"),
    ("chat_completions", "messages"),
)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("mode", "spoken"), PAIRS)
async def test_a_translated_answer_that_is_cut_at_any_byte_is_whole_or_an_error(
    mode: ApiMode, spoken: ApiMode, *, is_whole: bool
) -> None:
    stream = STREAMS[spoken]
    got = await outcome(mode, [stream], is_cut=False, is_whole=is_whole, spoken=spoken)
    assert got == TEXT
    errors = 0
    for at in range(len(stream)):
        for is_cut in (True, False):
            pieces = [stream[: at // 2], stream[at // 2 : at]]
            text = await outcome(mode, pieces, is_cut=is_cut, is_whole=is_whole, spoken=spoken)
            assert text in ("", TEXT), at
            errors += text == ""
    assert errors > len(stream)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("mode", "spoken"), PAIRS)
async def test_a_translated_answer_that_is_damaged_at_any_byte_is_whole_or_an_error(
    mode: ApiMode, spoken: ApiMode, *, is_whole: bool
) -> None:
    stream = STREAMS[spoken]
    errors = 0
    for at in range(len(stream)):
        spoiled = stream[:at] + b"\xff" + stream[at + 1 :]
        third = len(stream) // 3
        pieces = [spoiled[:third], spoiled[third : 2 * third], spoiled[2 * third :]]
        text = await outcome(mode, pieces, is_cut=False, is_whole=is_whole, spoken=spoken)
        assert text in ("", TEXT), (at, stream[max(0, at - 20) : at + 20])
        errors += text == ""
    assert errors > len(stream) // 2


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_pieces_of_any_size_reach_the_caller_as_they_were_sent(mode: ApiMode) -> None:
    stream = STREAMS[mode]
    for size in (1, 7, 64, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert await outcome(mode, pieces, is_cut=False, is_whole=False) == TEXT


ENDING = (b'"finish_reason": "', b'"stop_reason": "', b"response.completed", b'"finishReason"')


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_an_event_reaches_the_caller_before_it_is_read_unless_it_may_be_a_bad_end(
    mode: ApiMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(data=bytearray())
    sent_before: list[bool] = []
    feed = AnswerWatch.feed

    def reading(watch: AnswerWatch, data: bytes) -> bool:
        if seen.data and data.startswith((b"data: {", b"event: ")):
            is_end = any(sign in data for sign in ENDING)
            assert bytes(seen.data).endswith(data) is not is_end
            sent_before.append(not is_end)
        return feed(watch, data)

    monkeypatch.setattr(AnswerWatch, "feed", reading)
    pieces = in_events(STREAMS[mode])
    assert await outcome(mode, pieces, is_cut=False, is_whole=False, seen=seen) == TEXT
    assert len(set(sent_before)) == 2
    assert bytes(seen.data) == STREAMS[mode]


@pytest.mark.parametrize("more", [b"\n", b"\n\n", b"\r\n", b": ping\n\n", b"\n: ping\n"])
@pytest.mark.parametrize("mode", sorted(MODES))
async def test_what_stands_between_two_events_stays_where_it_is(mode: ApiMode, more: bytes) -> None:
    events = in_events(STREAMS[mode])
    pieces = [event + more * (number % 2) for number, event in enumerate(events)]
    seen = Seen(data=bytearray())
    assert await outcome(mode, list(pieces), is_cut=False, is_whole=False, seen=seen) == TEXT
    assert bytes(seen.data) == b"".join(pieces)


FAILURES: dict[ApiMode, bytes] = {
    "chat_completions": b'data: {"error": {"message": "overloaded", "code": 529}}\n\n',
    "responses": b"event: response.failed\n"
    b'data: {"type": "response.failed", "response": {"error": {"code": "x"}}}\n\n',
    "messages": b'event: error\ndata: {"type": "error", "error": {"type": "x"}}\n\n',
    "generate_content": b'data: {"error": {"code": 503, "status": "UNAVAILABLE"}}\n\n',
}


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_failure_is_told_once_and_nothing_is_sent_behind_it(mode: ApiMode) -> None:
    events = in_events(STREAMS[mode])
    half = len(events) - 3
    seen = Seen(data=bytearray())
    pieces = [*events[:half], FAILURES[mode], *events[half:]]
    assert await outcome(mode, pieces, is_cut=False, is_whole=False, seen=seen) == ""
    assert bytes(seen.data) == b"".join([*events[:half], FAILURES[mode]])


def repeating_the_key(mode: ApiMode) -> list[bytes]:
    """Errors as providers write them, the shape of the API and others."""
    name = KEY.decode()
    told = {"message": f"bad key {name}", "type": "server_error"}
    others = {"error": told}, {"code": "invalid_api_key", **told}, {"object": "error", **told}
    found = [f"data: {json.dumps(one)}\n\n".encode() for one in others]
    found.append(f"event: error\ndata: {json.dumps({'detail': name})}\n\n".encode())
    found.append(b"id: 7\nevent: error\ndata: upstream refuses " + KEY + b"\n\n")
    if mode == "responses":
        response = {"id": "r", "status": "failed", "error": told}
        for failed in (response, {"status": "failed", "status_details": name}):
            event = {"type": "response.failed", "response": failed}
            found.append(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
    return found


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mode", sorted(MODES))
async def test_an_error_after_the_first_word_does_not_repeat_the_key(
    mode: ApiMode, line: bytes
) -> None:
    events = in_events(STREAMS[mode])
    before = events[: len(events) - 3]
    for error in repeating_the_key(mode):
        sent = [one.replace(b"\n", line) for one in (*before, error)]
        stream = b"".join(sent)
        first = len(stream) - len(sent[-1])
        splits = [sent, [stream], [*sent[:-2], sent[-2] + sent[-1]]]
        splits += [[stream[:at], stream[at:]] for at in range(first, len(stream))]
        for pieces in splits:
            seen = Seen(data=bytearray())
            said = {"is_cut": False, "is_whole": False, "seen": seen}
            assert await outcome(mode, list(pieces), **said) == ""
            # An error that ends with the first piece leads to the next backend.
            assert bytes(seen.data) in (b"", stream.replace(KEY, b"*" * len(KEY)))
            assert seen.data or len(pieces) == 2 or pieces == [stream]


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_word_of_an_answer_that_is_also_the_key_stays_as_it_is(mode: ApiMode) -> None:
    events = in_events(STREAMS[mode].replace(b"PONG", KEY))
    half = len(events) - 3
    answer = b"".join(events)
    assert KEY in answer
    for pieces in (events, [answer], [answer[: len(answer) // 2], answer[len(answer) // 2 :]]):
        seen = Seen(data=bytearray())
        await outcome(mode, list(pieces), is_cut=False, is_whole=False, seen=seen)
        assert bytes(seen.data) == answer
    at = next(number for number, event in enumerate(events) if KEY in event)
    begun, said = b"".join(events[: at + 1]), b"".join(events[at:half])
    seen = Seen(data=bytearray())
    pieces = [begun, said + FAILURES[mode]]
    assert await outcome(mode, pieces, is_cut=False, is_whole=False, seen=seen) == ""
    assert bytes(seen.data) == begun + said + FAILURES[mode]


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_an_error_instead_of_an_answer_does_not_repeat_the_key(mode: ApiMode) -> None:
    whole = json.dumps({"error": {"message": KEY.decode()}}).encode()
    failures: list[NotAnswered] = []
    said = {"is_cut": False, "is_whole": False, "failures": failures}
    for piece in (whole, *repeating_the_key(mode)):
        assert await outcome(mode, [piece], **said) == ""
        assert failures[-1].body == piece.replace(KEY, b"*" * len(KEY))


def counted_stream(words: list[str], *, tokens: int) -> list[bytes]:
    pieces = [{"choices": [{"delta": {"content": word}}]} for word in words]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    events = [json.dumps(one) for one in (*pieces, end, usage)]
    return [f"data: {one}\n\n".encode() for one in (*events, "[DONE]")]


@pytest.mark.parametrize(("tokens", "said"), [(3, "a b c"), (4, ""), (0, "")])
async def test_a_damaged_event_is_left_out_where_nothing_of_the_answer_was_in_it(
    tokens: int, said: str
) -> None:
    events = counted_stream(["a", " b", " c"], tokens=tokens)
    for bad in (b'data: {"choices": [{"delta": {"content": \n\n', b"data: <html>\n\n"):
        for size in (1, 11, 10_000):
            stream = b"".join([*events[:2], bad, *events[2:]])
            # The beginning goes on by itself: a damaged beginning is the next backend's.
            first = len(events[0])
            rest = [stream[at : at + size] for at in range(first, len(stream), size)]
            got = await outcome(
                "chat_completions", [stream[:first], *rest], is_cut=False, is_whole=False
            )
            assert got == said


def choice(index: int, word: str, finish: str | None = None) -> bytes:
    one = {"index": index, "delta": {"content": word}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [one]})}\n\n".encode()


@pytest.mark.parametrize("is_whole", [False, True])
async def test_the_end_of_one_of_several_answers_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    for name in ("FAREWELL_S", "AFTER_END_S"):
        monkeypatch.setattr(relaying, name, 0.001)
    pieces = [choice(0, "a", "stop"), choice(1, " b"), choice(1, " c", "stop")]
    pieces = [b"".join(pieces[:2]), pieces[2]]
    said = {"is_cut": False, "is_whole": is_whole, "pause_s": 0.05}
    assert await outcome("chat_completions", list(pieces), **said) == "a b c"
    assert await outcome("chat_completions", pieces[:1], **said) == ""


@pytest.mark.parametrize("is_whole", [False, True])
async def test_googles_word_for_an_end_is_none_where_the_connection_breaks(
    *, is_whole: bool
) -> None:
    stream = STREAMS["generate_content"]
    assert await outcome("generate_content", [stream], is_cut=True, is_whole=is_whole) == ""


async def test_an_answer_of_many_bytes_that_say_nothing_is_passed_on() -> None:
    begun = b": " + b"x" * MAX_HELD_BYTES + b"\n\n"
    pieces = [begun, choice(0, "a") + choice(0, " b", "stop")]
    assert await begins("chat_completions", pieces) == "a b"


async def begins(mode: ApiMode, pieces: list[bytes]) -> str:
    """Of an answer whose last piece comes when it has been passed on so far."""
    seen = Seen(data=bytearray(), begun=anyio.Event())
    with anyio.fail_after(HANG_S):
        return await outcome(mode, pieces, is_cut=False, is_whole=False, seen=seen)


async def test_an_end_that_is_said_with_each_piece_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FAREWELL_S", "AFTER_END_S"):
        monkeypatch.setattr(relaying, name, 0.001)
    candidates = [
        {"content": {"parts": [{"text": word}]}, "finishReason": "STOP"} for word in ("a", " b")
    ]
    pieces = [f"data: {json.dumps({'candidates': [one]})}\n\n".encode() for one in candidates]
    got = await outcome("generate_content", pieces, is_cut=False, is_whole=False, pause_s=0.05)
    assert got == "a b"


async def test_a_failure_while_a_model_thinks_is_unseen_where_its_text_is_waited_for() -> None:
    thinks = b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    pieces = [thinks] * (MAX_HELD_EVENTS + 1)
    for waits in (False, True):
        seen = Seen(data=bytearray())
        said = {"is_cut": True, "is_whole": False, "seen": seen, "waits_for_text": waits}
        assert await outcome("chat_completions", list(pieces), **said) == ""
        assert bool(seen.data) is not waits


OPENS = b'data: {"type": "response.in_progress", "response": {"id": "r"}}\n\n'


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_model_that_thinks_unseen_is_waited_for_once_its_answer_is_opened(
    *, is_whole: bool
) -> None:
    pieces = [OPENS, OPENS, STREAMS["responses"]]
    thinks = {"is_cut": False, "is_whole": is_whole, "pause_s": 0.2, "first_s": 0.05}
    seen = Seen(data=bytearray())
    assert await outcome("responses", list(pieces), **thinks, may_think=True, seen=seen) == TEXT
    assert seen.is_said is is_whole
    assert await outcome("responses", list(pieces), **thinks) == ""


@pytest.mark.parametrize("is_whole", [False, True])
async def test_pings_alone_keep_no_answer_waiting_for_ever(*, is_whole: bool) -> None:
    pings = [b": ping\n\n"] * 10_000
    said = {"is_cut": False, "is_whole": is_whole, "pause_s": 0.01, "may_think": True}
    with anyio.fail_after(HANG_S):
        assert await outcome("messages", pings, **said, first_s=0.05, unsaid_s=0.1) == ""
    assert len(pings) > 9_000


async def test_what_a_model_thinks_is_passed_on_when_its_time_is_over() -> None:
    thinks = b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    pieces = [thinks, choice(0, "a", "stop")]
    seen = Seen(data=bytearray(), begun=anyio.Event())
    said = {"is_cut": False, "is_whole": False, "waits_for_text": True, "seen": seen}
    with anyio.fail_after(HANG_S):
        assert await outcome("chat_completions", pieces, **said, first_s=1) == "a"


async def test_an_answer_of_many_events_that_say_nothing_is_passed_on() -> None:
    pieces = [OPENS * MAX_HELD_EVENTS, STREAMS["responses"]]
    assert await begins("responses", pieces) == TEXT


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_stream_without_its_last_event_gets_one_within_a_second(
    monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    for name in ("FAREWELL_S", "AFTER_END_S"):
        monkeypatch.setattr(relaying, name, 0.001)
    for end in (b"", b'data: {"choices": []}'):
        seen = Seen(data=bytearray())
        pieces = [choice(0, "a", "stop") + end, b": never comes"]
        said = {"is_cut": False, "is_whole": is_whole, "pause_s": 0.5, "seen": seen}
        assert await outcome("chat_completions", pieces, **said) == "a"
        assert seen.data.endswith(b"\n\ndata: [DONE]\n\n")
        assert seen.data.count(b"[DONE]") == 1


async def test_the_event_that_ends_a_response_is_the_next_one() -> None:
    seen = Seen(data=bytearray())
    stream = STREAMS["responses"]
    cut = stream[: stream.rindex(b"event: ")]
    assert await outcome("responses", [cut], is_cut=True, is_whole=False, seen=seen) == ""
    *before, last = (event for _, event in _events(bytes(seen.data)))
    assert last["type"] == "response.failed"
    assert last["sequence_number"] == before[-1]["sequence_number"] + 1
    assert last["response"]["id"] == before[0]["response"]["id"]


async def test_an_answer_that_ends_without_its_last_event_gets_it_from_us() -> None:
    seen = Seen(data=bytearray())
    stream = STREAMS["messages"]
    cut = stream[: stream.rindex(b"event: message_stop")]
    assert await outcome("messages", [cut], is_cut=False, is_whole=False, seen=seen) == TEXT
    assert seen.data.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
