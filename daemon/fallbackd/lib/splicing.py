"""
JSON text of which a part is changed while every other byte stays as it is.

A provider may have signed what it wrote, and finds what it has cached by its bytes: a request that
is passed on is never written anew. `Unreadable` is raised for text that is not JSON of the expected
shape, and for objects that name a field twice.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.lib import foreign_json

Change = Callable[[bytes], bytes | None]
"""The new text of a value; None: it is taken out."""

_KEY = re.compile(rb'\s*+[{,]\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*+:\s*+', re.S)
_END = re.compile(rb"(?:\s*+\{)?\s*+\}\s*+")
_ITEM = re.compile(rb"\s*+[\[,]\s*+")
_LAST = re.compile(rb"(?:\s*+\[)?\s*+\]\s*+")
_TWICE = "an object of the body names a field twice"

EVERY = "*"
"""Name in a path for each item of a list."""


class Unreadable(ValueError):
    """The text is not what is expected of it."""


class Member(Struct, frozen=True):
    """Place of one field of an object."""

    key: int
    key_end: int
    value: int
    end: int


def members(data: bytes) -> dict[str, Member]:
    """
    Find the fields of an object. The decoder has found their ends, a hundred times as fast as a
    search for them.
    """
    fields = _decoded(data, dict[str, msgspec.Raw])
    found: dict[str, Member] = {}
    at = 0
    for _ in fields:
        key = _KEY.match(data, at)
        name = "" if key is None else foreign_json.decode(key[1], str)
        if key is None or name not in fields or name in found:
            raise Unreadable(_TWICE)
        at = key.end() + len(fields[name])
        found[name] = Member(key.start(1), key.end(1), key.end(), at)
    if not _END.fullmatch(data, at):
        raise Unreadable(_TWICE)
    return found


def items(data: bytes) -> list[tuple[int, int]]:
    """Find the items of a list."""
    found: list[tuple[int, int]] = []
    at = 0
    for raw in _decoded(data, list[msgspec.Raw]):
        begin = _ITEM.match(data, at)
        if begin is None:
            raise Unreadable("the items of a list are not found in its text")
        at = begin.end() + len(raw)
        found.append((begin.end(), at))
    if not _LAST.fullmatch(data, at):
        raise Unreadable("the items of a list are not found in its text")
    return found


def is_object(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{"


def is_list(data: bytes) -> bool:
    return data.lstrip()[:1] == b"["


def changed(data: bytes, path: Sequence[str], change: Change) -> bytes:
    """
    Change the values at a path of names and `EVERY`. What is not there, or is of another shape,
    stays.
    """
    name, *rest = path

    def inner(value: bytes) -> bytes | None:
        return changed(value, rest, change) if rest else change(value)

    if name == EVERY:
        return _with_items(data, inner) if is_list(data) else data
    found = members(data).get(name) if is_object(data) else None
    if found is None:
        return data
    value = data[found.value : found.end]
    made = inner(value)
    if made is None:
        return _without_member(data, name)
    return data if made == value else b"".join((data[: found.value], made, data[found.end :]))


def added(data: bytes, name: str, value: bytes) -> bytes:
    """Put a field in front of those of an object."""
    at = data.find(b"{") + 1
    rest = b"," if members(data) else b""
    return b"".join((data[:at], msgspec.json.encode(name), b":", value, rest, data[at:]))


def renamed(data: bytes, old: str, new: str) -> bytes:
    """Give a field of an object another name, unless a field has that name already."""
    found = members(data)
    if old not in found or new in found:
        return data
    one = found[old]
    return b"".join((data[: one.key], msgspec.json.encode(new), data[one.key_end :]))


def _with_items(data: bytes, change: Change) -> bytes:
    places = items(data)
    return _joined(data, places, [change(data[begin:end]) for begin, end in places])


def _without_member(data: bytes, name: str) -> bytes:
    found = members(data)
    places = [(one.key, one.end) for one in found.values()]
    made = [None if key == name else data[one.key : one.end] for key, one in found.items()]
    return _joined(data, places, made)


def _joined(data: bytes, places: Sequence[tuple[int, int]], made: Sequence[bytes | None]) -> bytes:
    """Put the parts in their places again; one that is taken out takes a comma with it."""
    if not places:
        return data
    pieces = [data[: places[0][0]]]
    is_first = True
    for number, part in enumerate(made):
        if part is None:
            continue
        if not is_first:
            pieces.append(data[places[number - 1][1] : places[number][0]])
        pieces.append(part)
        is_first = False
    pieces.append(data[places[-1][1] :])
    return b"".join(pieces)


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return foreign_json.decode(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
