"""
Settings files of JSON, changed in place: all else that is in them, comments too, stays as it is.

Comments and trailing commas are read, as VS Code, Zed, opencode and Gemini CLI allow them.
"""

from __future__ import annotations

import json
import re

from fallbackd_client.settings.files import BYTE_ORDER_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fallbackd_client.calls import Json

_SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PIECE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""What has to be known to find the end of an object or array."""
_SCALAR = re.compile(r"[^\s,\]}/]+")
_INDENT = "  "


class Unreadable(Exception):
    """The file is not what it should be, or the place in it is taken by something else."""


class _Item:
    """A member of an object or an element of an array: where it begins and ends in the text."""

    __slots__ = ("end", "key", "start", "value_at")

    def __init__(self, key: str | None, start: int, value_at: int, end: int) -> None:
        self.key = key
        self.start = start
        self.value_at = value_at
        self.end = end


def load(text: str) -> Json:
    """
    Raises:
        Unreadable: With line and column.
    """
    if not text.strip():
        return {}
    plain = _without_comments(text.removeprefix(BYTE_ORDER_MARK))
    try:
        return json.loads(plain)
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from error


def unreadable(error: ValueError | RecursionError) -> Unreadable:
    """What a parser has met, for a person."""
    if isinstance(error, RecursionError):
        return Unreadable("it is nested too deeply")
    if type(error) is ValueError:  # of the interpreter, not of a parser
        return Unreadable("it holds a number of too many digits")
    return Unreadable(str(error))


def with_member(text: str, path: Sequence[str], value: Json) -> str:
    """
    The text with `value` at `path`; objects on the way are made, one that is there is replaced.

    Raises:
        Unreadable: Something on the way is not an object.
    """
    whole = _object(text)
    for depth, key in enumerate(path):
        found = _find(whole, _start(whole, path[:depth]), key)
        if found is None:
            new = value
            for inner in reversed(path[depth + 1 :]):
                new = {inner: new}
            return _inserted(whole, _start(whole, path[:depth]), depth, key, new)
        if depth == len(path) - 1:
            shown = _shown(value, depth + 1)
            return whole[: found.value_at] + shown + whole[found.end :]
    return whole


def without_member(text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`, and without objects that are empty then."""
    found = _at(text, path)
    if found is None:
        return text
    text = _removed(text, found)
    parent = path[:-1]
    if parent and not list(_items(text, _start(text, parent))):
        return without_member(text, parent)
    return text


def with_element(
    text: str, path: Sequence[str], value: Json, *, is_ours: Callable[[Json], bool] | None = None
) -> str:
    """
    The text with one more element in the array at `path`, which is made where it is missing.

    Args:
        is_ours: Knows an element that is there already, which is replaced; None: an equal one.
    """
    whole = _object(text)
    found = _at(whole, path)
    if found is None:
        return with_member(whole, path, [value])
    if whole[found.value_at] != "[":
        raise Unreadable(f"{'.'.join(path)} is not a list")
    for item in _items(whole, found.value_at):
        known = load(whole[item.value_at : item.end])
        if known == value:
            return whole
        if is_ours is not None and is_ours(known):
            shown = _shown(value, len(path) + 1)
            return whole[: item.value_at] + shown + whole[item.end :]
    return _inserted(whole, found.value_at, len(path), None, value)


def without_element(text: str, path: Sequence[str], is_ours: Callable[[Json], bool]) -> str:
    """The text without the first such element in the array at `path`."""
    found = _at(text, path)
    if found is None or text[found.value_at] != "[":
        return text
    for item in _items(text, found.value_at):
        if is_ours(load(text[item.value_at : item.end])):
            text = _removed(text, item)
            is_empty = not list(_items(text, found.value_at))
            return without_member(text, path) if is_empty else text
    return text


def strings(text: str, path: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """
    Those in the array at `path`, or first in an array there, each with the place of its quotes.

    Raises:
        Unreadable: With line and column.
    """
    load(text)
    found = _at(text, path)
    if found is None or text[found.value_at] != "[":
        return
    for item in _items(text, found.value_at):
        if text[item.value_at] == "[":
            item = next(_items(text, item.value_at), item)
        if text[item.value_at] == '"':
            yield json.loads(text[item.value_at : item.end]), item.value_at, item.end


def _object(text: str) -> str:
    if not text.strip():
        return "{}\n"
    if not isinstance(load(text), dict):
        raise Unreadable("it does not hold an object")
    return text


def _start(text: str, path: Sequence[str]) -> int:
    """Of the object at `path`."""
    at = _skip(text, 0)
    for depth, key in enumerate(path):
        found = _find(text, at, key)
        if found is None or text[found.value_at] != "{":
            raise Unreadable(f"{'.'.join(path[: depth + 1])} is not an object")
        at = found.value_at
    return at


def _at(text: str, path: Sequence[str]) -> _Item | None:
    if not text.strip():
        return None
    at = _skip(text, 0)
    found = None
    for key in path:
        if text[at] != "{":
            return None
        found = _find(text, at, key)
        if found is None:
            return None
        at = found.value_at
    return found


def _find(text: str, start: int, key: str) -> _Item | None:
    return next((one for one in _items(text, start) if one.key == key), None)


def _items(text: str, start: int) -> Iterator[_Item]:
    """Of the object or array that begins at `start`. The text was loaded before."""
    is_object = text[start] == "{"
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        begin, key = at, None
        if is_object:
            name = _STRING.match(text, at)
            assert name is not None
            key = json.loads(name[0])
            at = _skip(text, _skip(text, name.end()) + 1)
        end = _end(text, at)
        yield _Item(key, begin, at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _end(text: str, at: int) -> int:
    """Behind the value that begins at `at`."""
    if text[at] not in "{[":
        found = (_STRING if text[at] == '"' else _SCALAR).match(text, at)
        assert found is not None
        return found.end()
    depth = 0
    for piece in _PIECE.finditer(text, at):
        depth += (piece[0] in "{[") - (piece[0] in "}]")
        if depth == 0:
            return piece.end()
    raise AssertionError


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _inserted(text: str, start: int, depth: int, key: str | None, value: Json) -> str:
    """As the last item of the object or array that begins at `start`."""
    items = list(_items(text, start))
    name = "" if key is None else json.dumps(key) + ": "
    new = "\n" + _INDENT * (depth + 1) + name + _shown(value, depth + 1)
    if items:
        at = items[-1].end
        behind = _skip(text, at)
        if text[behind] == ",":  # a trailing one is there already
            at, new = behind + 1, new + ","
            return text[:at] + new + text[at:]
        return text[:at] + "," + new + text[at:]
    close = _end(text, start) - 1
    return text[:close].rstrip(" \t\n") + new + "\n" + _INDENT * depth + text[close:]


def _removed(text: str, item: _Item) -> str:
    begin, end = item.start, item.end
    behind = _skip(text, end)
    if text[behind] == ",":
        end = behind + 1
    else:  # the last one: the comma before it goes too
        before = text[:begin].rstrip()
        if before.endswith(","):
            return before[:-1] + text[end:]
    begin = len(text[:begin].rstrip())
    return text[:begin] + text[end:]


def _shown(value: Json, depth: int) -> str:
    text = json.dumps(value, indent=len(_INDENT), ensure_ascii=False)
    return text.replace("\n", "\n" + _INDENT * depth)


def _without_comments(text: str) -> str:
    """With blanks in their place, so that a problem is reported where it is."""
    out = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            found = _STRING.match(text, at)
            end = len(text) if found is None else found.end()
            out.append(text[at:end])
            at = end
        elif text.startswith(("//", "/*"), at):
            end = text.find("\n", at) if text[at + 1] == "/" else text.find("*/", at + 2) + 2
            end = len(text) if end < at + 2 else end
            out.append(re.sub(r"[^\n]", " ", text[at:end]))
            at = end
        elif text[at] == "," and text.startswith(("}", "]"), _skip(text, at + 1)):
            out.append(" ")
            at += 1
        else:
            out.append(text[at])
            at += 1
    return "".join(out)
