"""
Tables of ours in a TOML file of another program, found again by the comments around them.

Programs that keep comments write new tables before the last comment of a file, which is ours: what
stands between the two is not all ours. Ours are the tables that the block is written with.
"""

from __future__ import annotations

import json
import re
from itertools import groupby

from fallbackd_client.settings.editing import Part
from fallbackd_client.settings.files import BYTE_ORDER_MARK
from fallbackd_client.settings.jsonc import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fallbackd_client.calls import Json

    Path = tuple[str, ...]

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
        """The line without its end."""
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
    """Return the end of the lines of the key or header that begins at `at`."""
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


def parse(text: str) -> Json:
    """
    Raises:
        Unreadable: With line and column.
    """
    import tomllib

    try:
        return tomllib.loads(text.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from error


class _Taken:
    """
    A file without our tables.

    Attributes:
        left: The rest of the text.
        place: Where in it our tables stood, in characters.
        keys: What a person has added: the lines of each key, by table and key.
        tables: The lines of each table within ours that the block is not written with, by its name.
    """

    def __init__(self) -> None:
        self.left = ""
        self.place = 0
        self.keys: dict[tuple[Path, Path], str] = {}
        self.tables: dict[Path, str] = {}

    def read(self, behind: Iterable[Piece], block: str, table: Path) -> str:
        """Keep what a person has added to the tables of the block; return what is not of them."""
        own = list(pieces(block + "\n"))
        written = {(piece.table, piece.path if piece.kind == "=" else ()) for piece in own}
        left: list[str] = []
        waiting: list[Piece] = []  # comments and empty lines: what they belong to comes next
        for piece in behind:
            is_ours = piece.table[: len(table)] == table
            if is_ours and piece.kind in ("", "#"):
                waiting.append(piece)
                continue
            if is_ours:
                comments = "".join(one.text for one in waiting if one.kind)
                left.append(self._keep(piece, comments, written))
            else:
                left += [one.text for one in (*waiting, piece)]
            waiting = []
        return "".join((*left, *(one.text for one in waiting)))

    def _keep(self, piece: Piece, comments: str, written: set[tuple[Path, Path]]) -> str:
        """Keep a line that the block is not written with; return the comments before another."""
        lines = f"{comments}{piece.line}\n"
        if (piece.table, ()) not in written:
            self.tables[piece.table] = self.tables.get(piece.table, "") + lines
        elif piece.kind == "=" and (piece.table, piece.path) not in written:
            self.keys[piece.table, piece.path] = lines
        else:
            return comments
        return ""

    def names(self) -> list[str]:
        keys = [".".join(key) for _, key in self.keys]
        return [*keys, *(f"[{'.'.join(table)}]" for table in self.tables)]

    def with_added(self, block: str) -> str:
        """The lines of the block; what a person has added stands behind our keys of its table."""
        sections = []
        for table, group in groupby(pieces(block + "\n"), key=lambda one: one.table):
            own = "".join(one.text for one in group).rstrip("\n") + "\n"
            sections.append(own + self.added(table))
        return "\n".join([*sections, *self.tables.values()]).rstrip("\n")

    def added(self, table: Path) -> str:
        return "".join(text for (place, _), text in self.keys.items() if place == table)


def block_part(
    path: str,
    block: str,
    *,
    table: tuple[str, ...],
    label: str = "fallbackd",
    stands_alone: bool = False,
) -> Part:
    """
    Args:
        block: Lines that make the table.
        table: What must not be in the file beside the block.
        label: Tells several blocks of one file apart.
        stands_alone: What a person has added to the table means something without our keys: it
            stays when they go.
    """
    shown = ".".join(table)

    def put(text: str) -> str:
        before = parse(text)
        taken = _without(text, label, block, table)
        left = text if taken is None else taken.left
        if _at(parse(left), table) is not None:
            raise Unreadable(f"[{shown}] is there already; remove it, or edit it")
        lines = block if taken is None else taken.with_added(block)
        gap = "\n" if left else ""  # no empty line: the last line of the file had no end
        after = f"{left}{gap}{_mark(label, 'begin')}\n{lines}\n{_mark(label, 'end')}\n"
        try:
            found = parse(after)
        except Unreadable as error:  # tables in one line can have no other beside them
            raise Unreadable(f"{table[0]} is written in one line; add {shown} there") from error
        wanted = _merged(_at(before, table), _at(parse(block), table))
        _check(_others(found, table) == _others(before, table) and _at(found, table), wanted)
        return after

    def take(text: str) -> str:
        before = parse(text)
        taken = _without(text, label, block, table)
        if taken is None:
            return text
        after = taken.left
        added = taken.added(table) if stands_alone else ""
        if added:
            head, tail = after[: taken.place], after[taken.place :]
            end = "" if not head or head.endswith("\n") else "\n"
            after = f"{head}{end}[{shown}]\n{added}{tail}"
        found = parse(after)
        _check(_others(found, table), _others(before, table))
        _check(bool(_at(found, table)), bool(added))
        return after

    def lost(text: str) -> list[str]:
        taken = _without(text, label, block, table)
        return [] if taken is None or stands_alone else taken.names()

    return Part(path, block, put=put, take=take, lost=lost)


def head_part(path: str, line: str, *, key: str, label: str) -> Part:
    """
    A line at the beginning of the file, where keys stand that belong to no table.

    Args:
        key: What must not be in the file beside the block.
    """

    def put(text: str) -> str:
        left = take(text)
        found = parse(left)
        if isinstance(found, dict) and key in found:
            raise Unreadable(f"{key} is there already; remove it, or edit it")
        gap = "\n" if left else ""
        return f"{_mark(label, 'begin')}\n{line}\n{_mark(label, 'end')}\n{gap}{left}"

    def take(text: str) -> str:
        parse(text)
        whole = list(pieces(text))
        at = _begin(whole, label)
        if at is None:
            return text
        before, behind = _before(whole, at, label), []
        for piece in whole[at + 1 :]:
            is_key = piece.kind == "=" and (piece.table, piece.path) == ((), (key,))
            # With another value it is no longer ours.
            if not _is_mark(piece, label) and not (is_key and parse(piece.text) == parse(line)):
                behind.append(piece.text)
        after = "".join([before, *behind])
        return after if before else re.sub(r"\A\r?\n", "", after)

    return Part(path, line, put=put, take=take)


def without_lines(text: str, label: str, is_ours: Callable[[str], bool]) -> str:
    """
    The text of a file of lines without those of ours between the two comments.

    Where the second comment is missing, ours are those that follow the first one at once.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    plain = [one.rstrip("\r\n") for one in lines]
    if _mark(label, "begin") not in plain:
        return text
    at = plain.index(_mark(label, "begin"))
    behind = range(at + 1, len(plain))
    end = next((one for one in behind if plain[one] == _mark(label, "end")), None)
    if end is None:
        end = next((one for one in behind if not is_ours(plain[one])), len(plain))
        return "".join(lines[:at] + lines[end:])
    kept = [lines[one] for one in range(at + 1, end) if not is_ours(plain[one])]
    return "".join(lines[:at] + kept + lines[end + 1 :])


def _mark(label: str, word: str) -> str:
    return f"# {label}: {word}"


def _is_mark(piece: Piece, label: str) -> bool:
    return piece.line in (_mark(label, "begin"), _mark(label, "end"))


def _begin(whole: list[Piece], label: str) -> int | None:
    mark = _mark(label, "begin")
    return next((at for at, piece in enumerate(whole) if piece.line == mark), None)


def _before(whole: list[Piece], at: int, label: str) -> str:
    """The text before the first mark, without the empty line that was put there."""
    has_gap = at > 1 and not whole[at - 1].kind
    before = whole[: at - has_gap]
    return "".join(piece.text for piece in before if not _is_mark(piece, label))


def _without(text: str, label: str, block: str, table: Path) -> _Taken | None:
    """
    Return the text without the block; None where the file has no such block.

    Raises:
        Unreadable: The table is there, but not where the marks are.
    """
    whole = list(pieces(text))
    at = _begin(whole, label)
    if at is None:
        return None
    if not _holds(whole[at + 1 :], label, table) and _at(parse(text), table) is not None:
        raise Unreadable(
            f"[{'.'.join(table)}] does not follow the comment {_mark(label, 'begin')!r}; "
            "edit it by hand"
        )
    taken = _Taken()
    before = _before(whole, at, label)
    behind = taken.read((one for one in whole[at + 1 :] if not _is_mark(one, label)), block, table)
    if at and whole[at - 1].kind and (not behind or behind.startswith("\n")):
        before = before.removesuffix("\n")  # which the block was put behind
    taken.place = len(before)
    taken.left = before + behind
    return taken


def _holds(behind: list[Piece], label: str, table: Path) -> bool:
    """
    Return whether the table begins before the second mark; where there is none, as the next table.
    """
    ends = [at for at, piece in enumerate(behind) if piece.line == _mark(label, "end")]
    headers = [piece for piece in behind[: ends[0] if ends else None] if piece.kind == "["]
    return any(one.path[: len(table)] == table for one in (headers if ends else headers[:1]))


def _at(found: Json, path: Path) -> Json:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _others(found: Json, path: Path) -> str:
    """
    Return what else is in the file, as text that can be compared; empty tables on the way left out.
    """

    def without(inner: Json, names: Path) -> Json:
        if not isinstance(inner, dict) or names[0] not in inner:
            return inner
        rest = {key: value for key, value in inner.items() if key != names[0]}
        below = without(inner[names[0]], names[1:]) if names[1:] else {}
        return rest if below == {} else {**rest, names[0]: below}

    return _comparable(without(found, path))


def _merged(before: Json, ours: Json) -> Json:
    if not isinstance(before, dict) or not isinstance(ours, dict):
        return ours
    return {**before, **{key: _merged(before.get(key), value) for key, value in ours.items()}}


def _check(found: Json, wanted: Json) -> None:
    """
    Raises:
        Unreadable: A change would give something else than what is wanted.
    """
    if _comparable(found) != _comparable(wanted):
        raise Unreadable("the change would harm what else is in it; edit it by hand")


def _comparable(value: Json) -> str:
    # Dates are no JSON, and a number that is none (NaN) does not equal itself.
    return json.dumps(value, sort_keys=True, default=repr)
