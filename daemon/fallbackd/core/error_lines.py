"""Which lines of a program's output may be its own statements, and where they begin."""

import re

_DECORATION = re.compile(
    r"^(?:[\s│┃╭╰╮╯─|■●•×✕✖✗❌⚠⎿›>*└├⚕️‼!！]+"
    r"|-\s(?=[A-Z])"
    r"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s*[:\]|-]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?\s"
    r"|\[\d{4}-\d\d-\d\d[^\]]*\]"
    r"|\[(?:stderr|stdout)\]\s)+"
)

MAX_LINE_CHARS = 8_000
"""No program states its failure in a longer line."""

MAX_FIRST_LINES, MAX_LAST_LINES = 50, 300
"""Of a long log, its beginning and its end are read: a failure ends a run, or keeps it from
beginning."""

# A tool's output in the transcript of an agent begins here …
_TOOL_OPENS = re.compile(
    r"^\s*(?:"
    r"[⏺●]\s*(?:Bash|Update|Write|Edit|Read|Web ?Search|WebFetch|Grep|Glob|Task|MultiEdit)\b"
    r"|exec$|diff --git |@@ |--- [ab]/|\+\+\+ [ab]/|\$ \S|> /run\b|[┊╎]\s*\S+\s|─── "
    r"|[│|]\s+(?:Bash|Edit|Read|Write|Grep|Glob|Web)\s|[│|]\s*✓|╭─+╮|• (?:Explored|Ran|Edited|Read)"
    r"|```"
    r")"
)
# … and ends where the agent, or the program itself, speaks again.
_TOOL_ENDS = re.compile(
    r"^\s*(?:[⏺✦⚕]\s*(?!Bash|Update|Write|Edit|Read|Web|Grep|Glob|Task)|codex$|user$|■|tokens used"
    r"|(?:\x1b\[\d+m)*(?:ERROR|Error|error): (?!Exit code)|╰─+╯|❯|✕)"
)
_AGENT_SPEAKS = re.compile(r"^\s*(?:[⏺✦⚕]|codex$)")


def candidate_lines(text: str, *, mixed: bool) -> tuple[str, ...]:
    """
    Lines without decoration that may be statements of the program, in order.

    Args:
        mixed: The text may hold an agent's prose and the output of its tools.
    """
    lines: list[str] = []
    in_tool = in_prose = False
    for line in text.split("\n"):
        if not line.strip():
            in_prose = False
            continue
        if _TOOL_OPENS.match(line):
            in_tool, in_prose = True, False
            continue
        if in_tool:
            if not _TOOL_ENDS.match(line):
                continue
            in_tool = False
        if _AGENT_SPEAKS.match(line):
            in_prose = True
        if in_prose and mixed:
            continue
        bare = _DECORATION.sub("", line).strip()
        if bare and len(bare) < MAX_LINE_CHARS:
            lines.append(bare)
    if len(lines) > MAX_FIRST_LINES + MAX_LAST_LINES:
        return (*lines[:MAX_FIRST_LINES], *lines[-MAX_LAST_LINES:])
    return tuple(lines)
