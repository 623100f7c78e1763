from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.wire.framing import MAX_LINE_BYTES, LineSplitter, LineTooLong

LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(LINES, st.binary(max_size=20), st.lists(st.integers(0, 300), max_size=20))
def test_lines_come_out_whole_however_they_were_cut(
    lines: list[bytes], tail: bytes, cuts: list[int]
) -> None:
    tail = tail.replace(b"\n", b"")
    data = b"".join(line + b"\n" for line in lines) + tail
    splitter = LineSplitter()
    found = [line for piece in chunked(data, cuts) for line in splitter.feed(piece)]
    assert found == lines
    assert splitter.pending_bytes == len(tail)


@given(st.integers(1, 60), st.lists(st.integers(0, 100), max_size=8))
def test_the_limit_holds_however_the_line_was_cut(size: int, cuts: list[int]) -> None:
    splitter = LineSplitter(max_bytes=30)
    pieces = chunked(b"x" * size + b"\n", cuts)
    if size <= 30:
        assert [line for piece in pieces for line in splitter.feed(piece)] == [b"x" * size]
    else:
        with pytest.raises(LineTooLong):
            _ = [splitter.feed(piece) for piece in pieces]


def test_a_line_of_exactly_the_limit_is_taken() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * MAX_LINE_BYTES) == []
    assert len(splitter.feed(b"\n")[0]) == MAX_LINE_BYTES


def test_a_long_line_in_the_middle_of_a_piece_is_refused() -> None:
    with pytest.raises(LineTooLong) as raised:
        LineSplitter(max_bytes=3).feed(b"a\nbbbb\nc\n")
    assert raised.value.max_bytes == 3


def test_an_unfinished_line_beyond_the_limit_is_refused_before_its_end() -> None:
    splitter = LineSplitter(max_bytes=3)
    splitter.feed(b"a\nbb")
    with pytest.raises(LineTooLong):
        splitter.feed(b"bb")
