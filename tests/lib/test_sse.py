"""Server-sent events, however they are cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.lib.sse import EventReader, ServerSentEvent, data_of_one, ends_event

LIMIT_BYTES = 1000


def test_events_are_read_as_the_standard_says() -> None:
    reader = EventReader(max_bytes=LIMIT_BYTES)
    body = b": hello\n\nevent: a\ndata:1\ndata: 2\nid: 7\nretry: 5\n\ndata\n\nevent: alone\n\nda"
    assert reader.feed(body) == [
        ServerSentEvent("a", b"1\n2"),
        ServerSentEvent("", b""),
        ServerSentEvent("alone", b""),
    ]
    assert reader.lines == 12
    assert reader.feed(b"ta: {}") == []
    assert reader.lines == 12
    assert reader.end() == [ServerSentEvent("", b"{}")]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_any_of_three_ways(end: bytes, size: int) -> None:
    reader = EventReader(max_bytes=LIMIT_BYTES)
    body = b"\xef\xbb\xbfdata: 1\ndata: 2\n\n: x\ndata: 3\n\n".replace(b"\n", end)
    found = []
    for start in range(0, len(body), size):
        found += reader.feed(body[start : start + size])
    assert found == [ServerSentEvent("", b"1\n2"), ServerSentEvent("", b"3")]


def test_a_line_that_is_no_field_spoils_its_event_alone() -> None:
    reader = EventReader(max_bytes=LIMIT_BYTES)
    (first, second) = reader.feed(b"data: 1\n<html>\ndata: 2\n\ndata: 3\n\n")
    assert first.problem
    assert first.data == b"2"
    assert second == ServerSentEvent("", b"3")


@pytest.mark.parametrize(
    "long", [b"data: " + b"x" * 2000 + b"\n", b"data: xxxxxxxxxx\n" * 100, b": " + b"x" * 2000]
)
def test_what_is_too_long_spoils_its_event_alone(long: bytes) -> None:
    reader = EventReader(max_bytes=LIMIT_BYTES)
    found = []
    for byte in long:
        found += reader.feed(bytes([byte]))
    found += reader.feed(b"\n\ndata: 1\n\n")
    assert [bool(one.problem) for one in found] == [True, False]
    assert found[1] == ServerSentEvent("", b"1")


def test_an_event_of_any_size_takes_bounded_memory() -> None:
    reader = EventReader(max_bytes=LIMIT_BYTES)
    for _ in range(20):
        assert reader.feed(b"data: " + b"x" * 1_000_000) == []
        assert len(reader._line) <= LIMIT_BYTES


def test_the_work_grows_with_the_bytes_and_not_with_their_square() -> None:
    """Tiny pieces of a large event: copying what came before with each would take hours."""
    reader = EventReader(max_bytes=1 << 24)
    piece = b"x" * 64
    reader.feed(b"data: ")
    for _ in range(1 << 17):
        reader.feed(piece)
    (event,) = reader.feed(b"\n\n")
    assert len(event.data) == 1 << 23


LINES = st.sampled_from(
    [
        *(b"data: {}", b"data:1", b"data", b"data: ", b"data: \xc3\xa4", b"id: 7", b": hello"),
        *(b"event: a", b"event:b c", b"event: \xff", b"event: " + b"x" * 201, b"<html>", b""),
    ]
)
BODIES = st.builds(
    lambda lines, ends: b"".join(line + end for line, end in zip(lines, ends, strict=False)),
    st.lists(LINES, max_size=4),
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r"]), min_size=4),
)


@given(
    past=BODIES, names=st.lists(LINES, max_size=1), data=LINES, end=st.sampled_from(["\n", "\r\n"])
)
def test_one_event_is_told_from_all_else_as_its_reader_does(
    past: bytes, names: list[bytes], data: bytes, end: str
) -> None:
    past += b"\n\n"
    assert ends_event(past)
    event = b"".join(line + end.encode() for line in (*names, data, b""))
    found = data_of_one(event)
    reader = EventReader(max_bytes=LIMIT_BYTES)
    reader.feed(past)
    read = reader.feed(event)
    if found is not None:
        assert [(one.data, one.problem) for one in read] == [(found, "")]
        assert ends_event(event)
    else:
        assert names or not data.startswith(b"data:")


def test_one_event_is_seen_where_it_stands_alone() -> None:
    assert data_of_one(b"data: {}\n\n") == b"{}"
    assert data_of_one(b"event: a\ndata:{}\n\n") == b"{}"
    assert data_of_one(b"event: a\r\ndata: {}\r\n\r\n") == b"{}"
    for other in (b"data: {}\n", b"data: {}\n\nd", b"data: 1\ndata: 2\n\n", b": ping\n\n"):
        assert data_of_one(other) is None
