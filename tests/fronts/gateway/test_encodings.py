"""Bodies of requests in gzip, of one member or of several."""

import gzip
import zlib

import pytest

from fallbackd.backends.passage import Unreadable
from fallbackd.fronts.gateway import incoming

PLAIN = b'{"model": "team", "messages": []}'
MOST = 1024 * 1024


def packed(*members: bytes) -> bytes:
    return b"".join(gzip.compress(one, mtime=0) for one in members)


def read(body: bytes, *, max_bytes: int = MOST) -> bytes | None:
    found = incoming.read_body(body, "gzip", max_bytes=max_bytes)
    assert found.packed == body
    return found.plain


@pytest.mark.parametrize(
    "body",
    [
        packed(PLAIN),
        packed(PLAIN[:20], PLAIN[20:]),
        packed(*(PLAIN[at : at + 1] for at in range(len(PLAIN)))),
        packed(b"", PLAIN, b"", b""),
        packed(PLAIN) + b"\0" * 512,
        packed(PLAIN[:9]) + b"\0" * 40_000 + packed(PLAIN[9:]) + b"\0",
    ],
)
def test_all_members_are_read_and_padding_of_zeros_is_none(body: bytes) -> None:
    assert read(body) == PLAIN


@pytest.mark.parametrize("size", [16_000, 16_384, 100_000])
def test_members_longer_than_what_is_fed_at_once_are_read(size: int) -> None:
    noise = bytes(hash((at, size)) & 255 for at in range(size))
    assert read(packed(noise, PLAIN, noise)) == noise + PLAIN + noise


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (packed(PLAIN) + b"garbage", "the gzip of the body is followed by something else"),
        (packed(PLAIN) + b"\0\0garbage", "the gzip of the body is followed by something else"),
        (packed(PLAIN) + b"\x1fgarbage", "the body is not gzip"),
        (packed(PLAIN, PLAIN)[:-3], "breaks off"),
        (packed(PLAIN) + packed(PLAIN)[:1], "breaks off"),
        (b"", "breaks off"),
        (packed(PLAIN)[:1], "breaks off"),
        (PLAIN, "the body is not gzip"),
        (zlib.compress(PLAIN), "the body is not gzip"),
        (packed(b"") * 10_001, "more than 10000 members"),
    ],
)
def test_what_is_no_gzip_or_no_more_of_it_is_refused_in_plain_words(body: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        packed(b" " * (MOST + 1)),
        packed(b" " * MOST, b" "),
        packed(*[b" " * 1024] * 1025),
        packed(b" " * 64 * MOST) + b"garbage",
    ],
)
def test_several_members_are_bounded_together(body: bytes) -> None:
    with pytest.raises(incoming.TooLong):
        read(body)


def test_a_body_of_just_the_size_that_is_allowed_is_read() -> None:
    assert read(packed(PLAIN[:20], PLAIN[20:]), max_bytes=len(PLAIN)) == PLAIN
