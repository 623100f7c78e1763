"""The text of a TOML file in pieces: headers of tables, keys with values, and what is between."""

from __future__ import annotations

import re

from fallbackd_client.settings.jsonc import unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_START = re.compile(r"[ \t]*([^ \t])", re.DOTALL)
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)
"""What has to be known to find the end of a value."""


class Piece:
    """
    Whole lines: a header, a key with its value, a comment, or an empty line.

    Attributes:
        kind: "[": a header; "=": a key with its value; "#": a comment; "": an empty line.
        path: Of a header: of its table; of a key: its words, without the table; else empty.
        table: That it stands in, by the last header.
    """

    __slots__ = ("kind", "path", "table", "text")

    def __init__(
        self, kind: str, text: str, *, path: tuple[str, ...], table: tuple[str, ...]
    ) -> None:
        self.kind = kind
        self.text = text
        self.path = path
        self.table = table

    @property
    def line(self) -> str:
        """Without its end."""
        return self.text.rstrip("\r\n")


def pieces(text: str) -> Iterator[Piece]:
    """
    All of a text that is valid TOML, in its order; their texts together are the text.

    Raises:
        Unreadable: It is not valid.
    """
    at = 0
    table: tuple[str, ...] = ()
    while at < len(text):
        found = _START.match(text, at)
        start = "" if found is None else found[1]
        if start in ("", "\r", "\n", "#"):
            end = text.find("\n", at) + 1 or len(text)
            yield Piece("#" if start == "#" else "", text[at:end], path=(), table=table)
        else:
            end = _end(text, at)
            path = _path(text[at:end], is_header=start == "[")
            if start == "[":
                table = path
            yield Piece("[" if start == "[" else "=", text[at:end], path=path, table=table)
        at = end


def _end(text: str, at: int) -> int:
    """Of the lines of the key or header that begins at `at`."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] == "\n" and depth <= 0:
            return token.end()
    return len(text)


def _path(text: str, *, is_header: bool) -> tuple[str, ...]:
    import tomllib

    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from error
    if not is_header:
        return tuple(found)
    path: list[str] = []
    inner: object = found
    while isinstance(inner, dict) and inner:
        (key,) = inner
        path.append(key)
        inner = inner[key]
    return tuple(path)
