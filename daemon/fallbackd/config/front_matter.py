"""
The front matter of a Markdown file: the plain part of YAML, as data.

Read are mappings and lists in blocks and in one line, plain and quoted texts, numbers, booleans,
null, and texts over several lines. Tags, anchors, aliases and merge keys are refused: a
description of an agent needs none, and a tag may ask for code.
"""

import json
import re
from typing import Any

FENCE = "---"
MAX_CHARS = 64 * 1024
MAX_DEPTH = 20
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_KEY = re.compile(
    r"""(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#&*!|>@`"'\[\]{},?:-][^#:]*?|\?[^\s:]+|-[^\s:]+)"""
    r"\s*:(?:\s+(?P<rest>.*))?$"
)
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "true": True, "false": False,
}  # fmt: skip


class NotPlain(Exception):
    """What cannot be read, with the number of its line."""


def split(text: str) -> str | None:
    """The front matter of a Markdown text; None where it has none."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != FENCE:
        return None
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() in (FENCE, "..."):
            return "\n".join(lines[1:number])
    return None


def parse(text: str) -> Any:
    """
    The value of a plain YAML text: dicts, lists, texts, numbers, booleans, None.

    Raises:
        NotPlain: It is no YAML, or more than its plain part.
    """
    if len(text) > MAX_CHARS:
        raise NotPlain(f"is longer than {MAX_CHARS} characters")
    reader = _Reader(text)
    value = reader.block(0, depth=0)
    reader.expect_end()
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1)]
        self._at = 0

    # --- lines -----------------------------------------------------------------------------

    def _peek(self) -> tuple[int, int, str] | None:
        """(number, indentation, content) of the next line that says something."""
        while self._at < len(self._lines):
            number, line = self._lines[self._at]
            content = line.strip()
            if content and not content.startswith("#"):
                indent = len(line) - len(line.lstrip(" "))
                if line[indent : indent + 1] == "\t":
                    raise NotPlain(f"line {number}: a tab cannot indent")
                return number, indent, content
            self._at += 1
        return None

    def expect_end(self) -> None:
        if (found := self._peek()) is not None:
            raise NotPlain(f"line {found[0]}: does not belong to what stands above")

    # --- blocks ----------------------------------------------------------------------------

    def block(self, indent: int, *, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NotPlain("is nested too deeply")
        found = self._peek()
        if found is None or found[1] < indent:
            return None
        number, own, content = found
        if content == "-" or content.startswith("- "):
            return self._list(own, depth=depth)
        if _KEY.match(content):
            return self._mapping(own, depth=depth)
        self._at += 1
        return _scalar(content, number)

    def _list(self, indent: int, *, depth: int) -> list[Any]:
        items: list[Any] = []
        while (found := self._peek()) is not None and found[1] == indent:
            number, _, content = found
            if not (content == "-" or content.startswith("- ")):
                break
            rest = content[1:].strip()
            if _is_comment(rest) or not rest:
                self._at += 1
                items.append(self.block(indent + 1, depth=depth + 1))
            elif _KEY.match(rest) and rest[0] not in "[{":
                # A mapping that begins behind the dash: its keys stand where the first one does.
                inner = indent + len(content) - len(rest)
                self._lines[self._at] = (number, " " * inner + rest)
                items.append(self._mapping(inner, depth=depth + 1))
            else:
                self._at += 1
                items.append(_scalar(rest, number))
        return items

    def _mapping(self, indent: int, *, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise NotPlain("is nested too deeply")
        found_by_key: dict[str, Any] = {}
        while (found := self._peek()) is not None and found[1] == indent:
            number, _, content = found
            match = _KEY.match(content)
            if match is None:
                raise NotPlain(f"line {number}: is no `key: value`")
            key = str(_scalar(match["key"], number, is_key=True))
            if key == "<<":
                raise NotPlain(f"line {number}: merge keys are not read")
            if key in found_by_key:
                raise NotPlain(f"line {number}: {key!r} stands there twice")
            rest = (match["rest"] or "").strip()
            self._at += 1
            found_by_key[key] = self._value(rest, number, indent, depth=depth)
        if (found := self._peek()) is not None and found[1] > indent:
            raise NotPlain(f"line {found[0]}: is indented too far")
        return found_by_key

    def _value(self, rest: str, number: int, indent: int, *, depth: int) -> Any:
        if rest[:1] in ("|", ">") and not rest[1:].strip("+-0123456789 "):
            return self._text_block(indent, folded=rest[0] == ">")
        if rest and not _is_comment(rest):
            return _scalar(rest, number)
        found = self._peek()
        if found is None or found[1] < indent:
            return None
        is_list = found[2] == "-" or found[2].startswith("- ")
        if found[1] == indent and not is_list:
            return None
        return self.block(found[1], depth=depth + 1)

    def _text_block(self, indent: int, *, folded: bool) -> str:
        taken: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at][1]
            if line.strip() and len(line) - len(line.lstrip(" ")) <= indent:
                break
            taken.append(line.strip() if folded else line)
            self._at += 1
        if folded:
            return " ".join(one for one in taken if one)
        least = min((len(one) - len(one.lstrip(" ")) for one in taken if one.strip()), default=0)
        return "\n".join(one[least:] for one in taken).rstrip("\n")


def _is_comment(text: str) -> bool:
    return text.startswith("#")


# --- values in one line ------------------------------------------------------------------------


def _scalar(text: str, number: int, *, is_key: bool = False) -> Any:
    value, rest = _flow(text, number, depth=0, stops="")
    if rest.strip() and not rest.strip().startswith("#"):
        raise NotPlain(f"line {number}: {rest.strip()[:20]!r} is left over")
    return text if is_key and not isinstance(value, str) else value


def _flow(text: str, number: int, *, depth: int, stops: str) -> tuple[Any, str]:
    """The value at the beginning of `text`, and what follows it."""
    if depth > MAX_DEPTH:
        raise NotPlain("is nested too deeply")
    text = text.lstrip()
    match text[:1]:
        case "!" | "&" | "*" | "@" | "`" | "%":
            raise NotPlain(f"line {number}: tags, anchors and aliases are not read")
        case '"' | "'":
            return _quoted(text, number)
        case "[":
            return _flow_list(text[1:], number, depth=depth)
        case "{":
            return _flow_mapping(text[1:], number, depth=depth)
        case _:
            return _plain(text, stops)


def _plain(text: str, stops: str) -> tuple[Any, str]:
    end = len(text)
    for place, letter in enumerate(text):
        is_comment = letter == "#" and (place == 0 or text[place - 1].isspace())
        if is_comment or letter in stops:
            end = place
            break
    word, rest = text[:end].strip(), text[end:]
    if word.lower() in _WORDS:
        return _WORDS[word.lower()], rest
    if _NUMBER.fullmatch(word) and len(word) < 40:
        return json.loads(word.removeprefix("+")), rest
    return word, rest


def _quoted(text: str, number: int) -> tuple[str, str]:
    if text[0] == "'":
        match = re.match(r"'((?:[^']|'')*)'", text)
        if match is None:
            raise NotPlain(f"line {number}: a quoted text does not end")
        return match[1].replace("''", "'"), text[match.end() :]
    match = re.match(r'"(?:[^"\\]|\\.)*"', text)
    if match is None:
        raise NotPlain(f"line {number}: a quoted text does not end")
    try:
        return json.loads(match[0]), text[match.end() :]
    except ValueError:
        raise NotPlain(f"line {number}: a quoted text cannot be read") from None


def _flow_list(text: str, number: int, *, depth: int) -> tuple[list[Any], str]:
    items: list[Any] = []
    while True:
        text = text.lstrip()
        if text.startswith("]"):
            return items, text[1:]
        if not text:
            raise NotPlain(f"line {number}: a list does not end in its line")
        value, text = _flow(text, number, depth=depth + 1, stops=",]")
        items.append(value)
        text = text.lstrip()
        if text.startswith(","):
            text = text[1:]


def _flow_mapping(text: str, number: int, *, depth: int) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    while True:
        text = text.lstrip()
        if text.startswith("}"):
            return found, text[1:]
        key, text = _flow(text, number, depth=depth + 1, stops=":,}")
        text = text.lstrip()
        if not text.startswith(":"):
            raise NotPlain(f"line {number}: a mapping does not end in its line")
        value, text = _flow(text[1:], number, depth=depth + 1, stops=",}")
        found[str(key)] = value
        text = text.lstrip()
        if text.startswith(","):
            text = text[1:]
        elif not text.startswith("}"):
            raise NotPlain(f"line {number}: a mapping does not end in its line")
