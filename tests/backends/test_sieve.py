"""Which events of a stream of chat completions go on, and when."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends.sieve import MAX_EVENT_BYTES, Sieve

ENDS = (b"\n", b"\r\n", b"\r")
every_line_end = pytest.mark.parametrize("end", ENDS)
BAD = b'data: {"choices": [{"delta": {"content": '


def event(text: str, end: bytes) -> bytes:
    said = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
    return b"data: " + said.encode() + end + end


@every_line_end
def test_an_event_goes_on_as_soon_as_it_is_complete_whatever_ends_its_lines(end: bytes) -> None:
    sieve = Sieve()
    for text in ("a", "b"):
        whole = event(text, end)
        assert sieve.feed(whole[:-2], may_drop=True) == b""
        last = [
            sieve.feed(whole[at:][:1], may_drop=True) for at in (len(whole) - 2, len(whole) - 1)
        ]
        assert b"".join(last) == whole
    assert sieve.rest() == b""
    assert sieve.accounts_for(2)


@given(st.lists(st.sampled_from(["a", "b\r\n\r\nc", ""]), max_size=4), st.data())
def test_bytes_stay_as_they_are_however_they_arrive(texts: list[str], data: st.DataObject) -> None:
    given_ends = [data.draw(st.sampled_from(ENDS)) for _ in texts]
    stream = b"".join(event(text, end) for text, end in zip(texts, given_ends, strict=True))
    size = data.draw(st.integers(1, 50))
    sieve = Sieve()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    passed = b"".join(sieve.feed(piece, may_drop=True) for piece in pieces)
    assert passed + sieve.rest() == stream
    assert not sieve.has_dropped


@every_line_end
def test_a_damaged_event_is_left_out_whatever_ends_its_lines(end: bytes) -> None:
    sieve = Sieve()
    good = event("a", end), event("b", end)
    stream = good[0] + BAD + end + end + good[1]
    passed = b"".join(sieve.feed(bytes([one]), may_drop=True) for one in stream)
    assert (passed + sieve.rest()).replace(b"\n", b"") == b"".join(good).replace(b"\n", b"")
    assert sieve.has_dropped


def test_a_long_event_is_judged_as_a_whole() -> None:
    whole = event("x" * (3 * 1024 * 1024), b"\n")
    sieve = Sieve()
    pieces = [whole[at : at + 60_000] for at in range(0, len(whole), 60_000)]
    assert b"".join(sieve.feed(piece, may_drop=True) for piece in pieces) == whole
    assert not sieve.has_dropped


def test_an_event_that_is_too_long_for_its_reader_goes_on_unjudged() -> None:
    begun = BAD + b"x" * MAX_EVENT_BYTES
    sieve = Sieve()
    assert sieve.feed(begun, may_drop=True) == begun
    assert not sieve.has_dropped
