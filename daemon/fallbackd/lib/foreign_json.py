"""
JSON that other programs wrote.

JavaScript writes half of a surrogate pair where it has cut a text in the middle of a character, as
in two pieces of one answer. RFC 8259, 8.2, allows that and leaves open what it means.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

_HIGH, _LOW = rb"u[dD][89abAB][\da-fA-F]{2}", rb"u[dD][c-fC-F][\da-fA-F]{2}"
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(rb"\\(?:%b\\%b|(%b|%b)|.)" % (_HIGH, _LOW, _HIGH, _LOW), re.S)


def decode(data: bytes | str, kind: Any = Any) -> Any:
    """
    A value of `kind`; U+FFFD stands in it for each half of a pair.

    Raises:
        msgspec.DecodeError: It is not JSON, or (`ValidationError`) of another kind.
        UnicodeError, RecursionError: It is no text, or has too many brackets.
    """
    decoder = _decoder_of(kind)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        raw = data.encode() if isinstance(data, str) else data
        whole = without_halves(raw) if _HALF.search(raw) else raw
        if whole == raw:
            raise
        return decoder.decode(whole)


def without_halves(data: bytes) -> bytes:
    """Return as many bytes, with U+FFFD for each half of a surrogate pair."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] is None else b"\\ufffd", data)


@lru_cache(maxsize=64)
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


Fields = Mapping[str, Any]
"""An object of any shape."""


def fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int:
    """Return a number that is not negative; fractions are cut off."""
    return int(value) if isinstance(value, int | float) and value > 0 else 0
