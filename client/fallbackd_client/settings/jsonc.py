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
_COMMENT_BEHIND = re.compile(r"[ \t]*//[^\n]*(?=\n)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BARE = re.compile(r"\s*:\s*(?:\{\s*\}|\[\s*\])")
_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
_INDENT = "  "


class Unreadable(Exception):
    """The file is not what it should be, or the place in it is taken by something else."""


class _Item:
    """
    A member of an object or an element of an array: where it begins and ends in the text.

    Attributes:
        behind: Where what is before it ends: a comma, or the bracket that opens it all.
    """

    __slots__ = ("behind", "end", "key", "start", "value_at")

    def __init__(
        self, key: str | None, *, behind: int, start: int, value_at: int, end: int
    ) -> None:
        self.key = key
        self.start = start
        self.value_at = value_at
        self.end = end
        self.behind = behind


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
    """Say what a parser has met, for a person."""
    if isinstance(error, RecursionError):
        return Unreadable("it is nested too deeply")
    if type(error) is ValueError:  # of the interpreter, not of a parser
        return Unreadable("it holds a number of too many digits")
    return Unreadable(str(error))


def with_member(text: str, path: Sequence[str], value: Json) -> str:
    """
    The text with `value` at `path`; objects on the way are made, one that is there is replaced.

    Raises:
        Unreadable: Something on the way is not an object, or a name on it is there twice.
    """
    whole = _object(text)
    wanted = load(whole)
    inner = wanted
    for key in path[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    if isinstance(inner, dict):  # where it is none, there is no place for the value
        inner[path[-1]] = value
    return _checked(_with_member(whole, path, value), wanted)


def _with_member(whole: str, path: Sequence[str], value: Json) -> str:
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
    """
    The text without what is at `path`, and without objects that hold nothing then.

    An object that holds a comment stays.

    Raises:
        Unreadable: The text cannot be understood, or a name on the way is there twice.
    """
    wanted = load(text)
    found = _at(text, path)
    if found is None:
        return text
    parent = path[:-1]
    inner = wanted
    for key in parent:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(path[-1], None)
    text = _checked(_removed(text, found), wanted)
    return without_member(text, parent) if parent and _is_bare(text, parent) else text


def with_element(
    text: str, path: Sequence[str], value: Json, *, is_ours: Callable[[Json], bool] | None = None
) -> str:
    """
    The text with one more element in the array at `path`, which is made where it is missing.

    Args:
        is_ours: Knows an element that is there already, which is replaced; None: an equal one.

    Raises:
        Unreadable: Something on the way is of another kind, or a name on it is there twice.
    """
    whole = _object(text)
    found = _at(whole, path)
    if found is None:
        return with_member(whole, path, [value])
    if whole[found.value_at] != "[":
        raise Unreadable(f"{'.'.join(path)} is not a list")
    wanted = load(whole)
    known = _list(wanted, path)
    for at, item in enumerate(_items(whole, found.value_at)):
        if known[at] == value:
            return whole
        if is_ours is not None and is_ours(known[at]):
            known[at] = value
            shown = _shown(value, len(path) + 1)
            return _checked(whole[: item.value_at] + shown + whole[item.end :], wanted)
    known.append(value)
    return _checked(_inserted(whole, found.value_at, len(path), None, value), wanted)


def without_element(text: str, path: Sequence[str], is_ours: Callable[[Json], bool]) -> str:
    """
    The text without the first such element in the array at `path`.

    Raises:
        Unreadable: The text cannot be understood, or a name on the way is there twice.
    """
    wanted = load(text)
    found = _at(text, path)
    if found is None or text[found.value_at] != "[":
        return text
    known = _list(wanted, path)
    for at, item in enumerate(_items(text, found.value_at)):
        if is_ours(known[at]):
            del known[at]
            text = _checked(_removed(text, item), wanted)
            return without_member(text, path) if _is_bare(text, path) else text
    return text


def strings(text: str, path: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """
    Yield the strings in the array at `path`, or first in an array there, each with the place of its
    quotes.

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


def _list(value: Json, path: Sequence[str]) -> list[Json]:
    """The one at `path`, where the text has one too."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, list):
        raise _by_hand()
    return value


def _checked(text: str, wanted: Json) -> str:
    """
    The text, which has to hold what is wanted and nothing else.

    Raises:
        Unreadable: It does not.
    """
    try:
        # As text: a number that is none (NaN) equals nothing, itself neither.
        is_same = json.dumps(load(text)) == json.dumps(wanted)
    except (Unreadable, RecursionError) as error:
        raise _by_hand() from error
    if not is_same:
        raise _by_hand()
    return text


def _by_hand() -> Unreadable:
    return Unreadable(
        "the change would harm what else is in it, perhaps since a name is there twice; "
        "edit it by hand"
    )


def _object(text: str) -> str:
    if not text.strip():
        return "{}\n"
    if not isinstance(load(text), dict):
        raise Unreadable("it does not hold an object")
    return text


def _start(text: str, path: Sequence[str]) -> int:
    """Return the start of the object at `path`."""
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
    """Yield the items of the object or array that begins at `start`. The text was loaded before."""
    is_object = text[start] == "{"
    behind = start + 1
    at = _skip(text, behind)
    while text[at] not in "}]":
        begin, key = at, None
        if is_object:
            name = _STRING.match(text, at)
            assert name is not None
            key = json.loads(name[0])
            at = _skip(text, _skip(text, name.end()) + 1)
        end = _end(text, at)
        yield _Item(key, behind=behind, start=begin, value_at=at, end=end)
        at = _skip(text, end)
        if text[at] == ",":
            behind = at + 1
            at = _skip(text, behind)


def _end(text: str, at: int) -> int:
    """Return the place after the value that begins at `at`."""
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


def _is_bare(text: str, path: Sequence[str]) -> bool:
    """Return whether the object or array at `path` holds nothing, not even a comment."""
    found = _at(text, path)
    name = None if found is None else _STRING.match(text, found.start)
    if found is None or name is None:
        return False
    return _BARE.fullmatch(text, name.end(), found.end) is not None


def _inserted(text: str, start: int, depth: int, key: str | None, value: Json) -> str:
    """Insert as the last item of the object or array that begins at `start`."""
    items = list(_items(text, start))
    name = "" if key is None else json.dumps(key) + ": "
    new = "\n" + _INDENT * (depth + 1) + name + _shown(value, depth + 1)
    if items:
        at = items[-1].end
        behind = _skip(text, at)
        comma = ","
        if text[behind] == ",":  # a trailing one is there already
            at, comma, new = behind + 1, "", new + ","
        comment = _COMMENT_BEHIND.match(text, at)  # of the last item, whose it stays
        place = at if comment is None else comment.end()
        return text[:at] + comma + text[at:place] + new + text[place:]
    close = _end(text, start) - 1
    return text[:close].rstrip(" \t\n") + new + "\n" + _INDENT * depth + text[close:]


def _removed(text: str, item: _Item) -> str:
    """Remove it and one comma beside it. Comments stay, and nothing joins a line that is one."""
    start = begin = item.behind
    is_line = False
    for comment in _COMMENT.finditer(text[: item.start], start):
        begin = comment.end()
        is_line = comment[0].startswith("//")
    comma = _skip(text, item.end)
    if text[comma] == ",":
        tail = text[item.end : comma] + text[comma + 1 :]
    else:  # the last one: the comma before it goes too
        tail = text[item.end :]
        start -= text[start - 1] == ","
    if is_line and not _LINE_END.match(tail):
        begin, tail = item.start, tail.lstrip(" \t")
    return text[:start] + text[item.behind : begin] + tail


def _shown(value: Json, depth: int) -> str:
    text = json.dumps(value, indent=len(_INDENT), ensure_ascii=False)
    return text.replace("\n", "\n" + _INDENT * depth)


def _without_comments(text: str) -> str:
    """Blank comments, so that a problem is reported where it is."""
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
