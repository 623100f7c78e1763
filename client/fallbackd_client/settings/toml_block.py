"""A block of lines in a TOML file, between two comments by which it is found again."""

from __future__ import annotations

import re

from fallbackd_client.settings.editing import Part
from fallbackd_client.settings.files import BYTE_ORDER_MARK
from fallbackd_client.settings.jsonc import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json


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


def block_part(path: str, block: str, *, table: tuple[str, ...], label: str = "fallbackd") -> Part:
    """
    Args:
        block: Lines that make the table.
        table: What must not be in the file beside the block.
        label: Tells several blocks of one file apart.
    """
    shown = ".".join(table)

    def put(text: str) -> str:
        left = without_block(text, label)
        found = parse(left)
        for key in table:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            raise Unreadable(f"[{shown}] is there already; remove it, or edit it")
        gap = "" if not left else "\n" if left.endswith("\n") else "\n\n"
        after = f"{left}{gap}# {label}: begin\n{block}\n# {label}: end\n"
        try:
            parse(after)
        except Unreadable as error:  # tables in one line can have no other beside them
            raise Unreadable(f"{table[0]} is written in one line; add {shown} there") from error
        return after

    return Part(path, block, put=put, take=lambda text: without_block(text, label))


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
        return f"# {label}: begin\n{line}\n# {label}: end\n{gap}{left}"

    def take(text: str) -> str:
        left = without_block(text, label)
        return left if left == text else left.removeprefix("\n")

    return Part(path, line, put=put, take=take)


def without_block(text: str, label: str = "fallbackd") -> str:
    """Also where an editor has changed the ends of lines since."""
    begin, end = (rf"^# {re.escape(label)}: {word}" for word in ("begin", "end"))
    found = re.search(rf"{begin}\r?\n.*?{end}(?:\r?\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return text
    before = re.sub(r"\n\r?\n\Z", "\n", text[: found.start()])
    return before + text[found.end() :]
