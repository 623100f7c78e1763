"""
Frames of stack traces: they show where a program was, and state nothing.

Names of files and functions (`rateLimit.js`, `quota_exceeded`) read like failures otherwise. The
exception's own line stays.
"""

import re

_JAVASCRIPT = re.compile(
    r"^\s*at .{0,300}(?:[A-Za-z>]:\d+(?::\d+)?\)?|\((?:<anonymous>|native(?: code)?"
    r"|Native Method|Unknown Source|index \d+)\))\s*$"
)
"""Of Java as well."""
_MORE = re.compile(r"^\s*\.\.\. \d+ (?:more|common frames)\b")
_PYTHON = re.compile(r'^\s*File ".{1,400}", line \d+(?:, in .+)?\s*$')
_RUST = re.compile(
    r"^\s{2,}\d+:\s+(?:0x[0-9a-f]+ - )?(?:\S.{0,300}::\S.{0,300}|rust_\w+|_start|main)$"
)
_GO = re.compile(r"^\s+\S+\.go:\d+(?: \+0x[0-9a-f]+)?\s*$")
_RUBY = re.compile(r"^\s+(?:\d+: )?from \S.{0,300}:\d+(?::in .{1,200})?$")
_SOURCE = re.compile(r"^\s*\S+\.(?:[cm]?[jt]sx?|py|go|rs|java|rb|php|cs|kt):\d+(?::\d+)?:?\s*$")
_PANIC_PLACE = re.compile(r"(panicked at )\S{1,300}:\d+:\d+:?")


def is_frame(line: str) -> bool:
    """Frames whose line says so by itself; those of Go and the source below are not seen here."""
    return any(
        shape.match(line) for shape in (_JAVASCRIPT, _PYTHON, _RUST, _GO, _RUBY, _SOURCE, _MORE)
    )


def has_frames(text: str) -> bool:
    return any(is_frame(line) for line in text.split("\n"))


def without_frames(text: str) -> str:
    """Leave out frames, with the source that some of them quote below themselves."""
    lines = text.split("\n")
    if not any(map(is_frame, lines)):
        return text
    kept: list[str] = []
    quotes = False  # a line of source and a marker below it follow
    for at, line in enumerate(lines):
        if is_frame(line):
            quotes = bool(_PYTHON.match(line) or _SOURCE.match(line))
        elif at + 1 < len(lines) and _GO.match(lines[at + 1]):
            quotes = False  # the function whose place is in the next line
        elif not (quotes and line[:1] in (" ", "\t")):
            quotes = False
            kept.append(_PANIC_PLACE.sub(r"\1", line))
    return "\n".join(kept)
