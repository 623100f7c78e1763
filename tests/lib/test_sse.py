"""Server-sent events, however they are cut into pieces."""

import pytest

from fallbackd.lib.sse import EventReader, ServerSentEvent

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
