"""
Which lines of a program's output may be its own statements, and where they begin.

Left out is what an agent says and what its tools print: calls and their output, diffs, code,
tables, lists, quotations. What is left loses its decoration: boxes, times, names of loggers.
"""

import re

import msgspec
from msgspec import Struct

from fallbackd.lib import foreign_json

MAX_LINE_CHARS = 4_000
"""No program states its failure in a longer line."""

MAX_FIRST_LINES, MAX_LAST_LINES = 20, 60
"""Of many candidates the first and the last ones count."""

MAX_BLOCK_LINES, MAX_BLOCK_CHARS = 14, 2_000
"""A statement over several lines, as terminals wrap it and JSON is printed, is no longer."""


class Line(Struct, frozen=True):
    text: str
    """Without decoration."""
    has_level: bool = False
    """A logger has marked it as an error."""
    is_quiet: bool = False
    """A logger has marked it as information."""
    begins: bool = True
    """It stands behind an empty line, or was decorated: it continues nothing."""
    is_deep: bool = False
    """Indented as code is."""


_BOX = re.compile(r"^[\s│┃╭╰╮╯─■⏺●•×✕✖✗⨯❌⚠⎿›└├⚕✘🚫⛔❗☠\ufe0f‼!！]+")
_BULLET = re.compile(r"[■⏺●•×✕✖✗⨯❌⚠⎿›✘🚫⛔❗☠]")
_PREFIXES = (
    # 2026-02-03T04:05:06.789Z, [2026-02-03 04:05:06,789], 2026/02/03 04:05:06
    re.compile(
        r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
        r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d)\b)?\]?\s*[:|-]?\s*"
    ),
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s+"),
    # Apr 28 19:14:01 host-a node[123]:
    re.compile(r"[A-Za-z]{3} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,60} [\w./-]{1,60}(?:\[\d+\])?: "),
    re.compile(r"\S{1,200}\.rb:\d{1,6}:in [`'].{1,100}?': "),
    re.compile(r"Exception in thread \"[^\"]{1,60}\" "),
    re.compile(r"[\w.-]{1,40}-\d{1,3} +\| +"),  # of containers that run together
    re.compile(r"\[(?:stderr|stdout)\]\s*", re.I),
    # - name - ERROR -, | ERROR | module:function:12 -
    re.compile(
        r"[-|]?\s?[\w.]{1,60}\s?[-|]\s(?=(?:ERROR|CRITICAL|FATAL|WARN|INFO|DEBUG)\w{0,3}\s)"
    ),
    re.compile(r"[-|] (?=\S)"),
    re.compile(r"[\w.]{1,60}:[\w<>]{1,40}:\d{1,6} - "),
)
_LEVEL = re.compile(
    r"(?:level=(?P<a>\w+)\s+(?:msg=\"?)?"
    r"|\[?(?P<b>ERROR|ERR|FATAL|CRITICAL|SEVERE|WARN|WARNING|INFO|DEBUG|TRACE|NOTICE)\]?"
    r"(?::(?=[\w.]{1,40}:)|(?=\s)|(?<=\]):?)\s*"
    r"|\[(?P<c>error|err|fatal|critical|warn|warning|info|debug|trace)\]:?\s*)"
)
_TAG = re.compile(r"(?:\[[\w ./:@-]{1,40}\](?=\s)|[a-z][\w.]{1,30}:(?=ERROR\b))\s*")
_MAX_PREFIXES = 8
_ERRORS = frozenset(("error", "err", "fatal", "critical", "severe"))
_QUIET = frozenset(("info", "debug", "trace", "notice"))

# A tool's output in the transcript of an agent begins here …
_AGENTS = (
    r"(?:claude|codex|gemini|opencode|aider|goose|qwen|kimi|crush|hermes|copilot|numasec|ollama"
    r"|llm|openclaw|npx|cursor-agent|amp)"
)
_TOOL_OPENS = re.compile(
    r"^\s*(?:"
    r"[⏺●✓✔]\s*[A-Z][\w-]*(?: [A-Z][\w-]*)?\("
    r"|[⏺●]\s*(?:Bash|Update|Write|Edit|Read|Web ?Search|WebFetch|Grep|Glob|Task|MultiEdit"
    r"|Shell)\b(?! \d)"
    r"|exec$|diff --git |@@ |--- [ab]/|\+\+\+ [ab]/|Index: \S"
    rf"|(?:[\w.@~:/-]{{1,60}})?[$%] (?!(?:sudo |\w+=\S+ )?{_AGENTS}\b)\S"
    r"|PS [A-Z]:\\[^>]{0,80}> \S"
    r"|> /run\b|[┊╎]\s*\S+\s|─── "
    r"|[│|]\s+(?:Bash|Edit|Read|Write|Grep|Glob|Web|List|Task)\s|[│|]\s*[✓x✗]\s|╭─+╮"
    r"|[•✓✔✗] (?:Explored|Ran|Edited|Read|Added|Deleted|Updated|Used|Shell|Running|Bash)\b"
    r"|(?:docker|kubectl|npm|git|gh|pytest|cargo|make|curl|psql|terraform|helm) [a-z-]+(?: \S|$)"
    r"|```|~~~"
    r")"
)
# … and ends where the agent, or the program itself, speaks again.
_TOOL_ENDS = re.compile(
    r"^(?:\s*[⏺●✦⚕]\s*(?![A-Z][\w-]*(?: [A-Z][\w-]*)?\()|codex$|user$|assistant$|\s*■"
    r"|tokens used|ERROR: (?!Could not|No matching|failed to)|╰─+╯|❯|\s*✕"
    rf"|(?:[\w.@~:/-]{{1,60}})?[$%] {_AGENTS}\b)"
)
_FENCE = re.compile(r"^\s*(?:```|~~~)")
# What a CLI prints in the place of an answer, or below it, is a notice of its own.
_BANNER = r"(?:API Error\b|[^\n.!?`]{0,80}\blimit\b[^\n.!?`]{0,30} [·∙•] resets )"
_AGENT_SPEAKS = re.compile(rf"^\s*(?:[⏺●✦⚕]\s+(?!{_BANNER})|codex$|assistant$|thinking$)")
_SPEAKS_BANNER = re.compile(rf"^\s*[⏺●]\s+{_BANNER}")
_BELOW = re.compile(r"^\s*(?:>\s*)?⎿")
"""Below a call it is the tool's output, once; below what the agent says it is the program's."""

# Lines that show something instead of saying it: lists, tables, quotations, diffs, headings.
_SHOWN = re.compile(
    r"^\s*(?:[-+*] |[-+][^\s-]|\d{1,2}[.)] |> |#{1,6} |\|.*\|\s*$|//|/\*|<!--"
    r"|(?!\"[\w.-]+\"\s*:|'[\w.-]+'(?:\s*:| is not recognized))[\"'`“”«„‘][^\"{]"
    r"|[✻✽✶] |\[[ x]\] |☐|☑|✅|💡|🔧|🛡|📝|\d+ [+-](?! ?[{\[]) ?|[0-9a-f]{7,12} \w"
    r"|(?!status|code|error|exit)[\w.-]+: ?(?:\d[\d_.]*|true|false|null)\s*$"
    r"|\S+\.(?:py|[jt]sx?|go|rs|java|rb|c|cpp|h|md|json|ya?ml|toml|sh|txt|php|cs|kt|sql)"
    r":\d+(?!\d{0,5}:in [`']))"
)


_MARK = re.compile(r"^\s*(?:[-+*] \[[ x]\] |[-+*>|•] ?|#{1,6} |\d{1,2}[.)] |//+ ?|⎿ *|[\"'`“”«„‘])")


def without_marks(text: str) -> str:
    """The same lines, as if what is only shown were said."""
    lines = (line for line in text.split("\n") if not _TOOL_OPENS.match(line))
    return "\n".join(_MARK.sub("", line, count=1).strip(" \t|\"'`") for line in lines)


_BORDER = re.compile(r"^\s*[╭┌╔╰└╚+][─═━-]{3,}[╮┐╗╯┘╝+]\s*$")
_SIDE = re.compile(r"^\s*[│║┃|] ?|\s*[│║┃|]\s*$")
_QUOTES = {"`": "`", "«": "»", "“": "”", "„": "“", "‘": "’", "'": "'", "「": "」", "『": "』"}


def unwrapped(text: str) -> str:
    """The text in a box or in quotes, where nothing stands beside it: it is said, not shown."""
    bare = text.strip()
    if len(bare) > MAX_BLOCK_CHARS or len(bare) < len("``") + 1:
        return text
    lines = bare.split("\n")
    if len(lines) > 2 and _BORDER.match(lines[0]) and _BORDER.match(lines[-1]):
        return "\n".join(_SIDE.sub("", line) for line in lines[1:-1])
    if bare[0] == bare[-1] == '"' or ('\\"' in bare and '"' not in bare.replace('\\"', "")):
        return _decoded(bare) or text
    inner = bare[1:-1].strip()
    if _QUOTES.get(bare[0]) == bare[-1] and not {bare[0], bare[-1]} & set(inner):
        return inner
    return text


def _decoded(bare: str) -> str | None:
    """Of a string as JSON writes it, with its quotes or without them."""
    quoted = bare if bare[0] == '"' else f'"{bare}"'
    try:
        read: str = foreign_json.decode(quoted, str)
    except (msgspec.MsgspecError, UnicodeError):
        return None if '"' in bare[1:-1] else bare[1:-1].strip()
    return read


def candidate_lines(text: str, *, mixed: bool) -> tuple[Line, ...]:
    """
    Lines that may be statements of the program, in order.

    Args:
        mixed: The text may hold an agent's prose and the output of its tools.
    """
    reader = _Reader(mixed=mixed)
    for raw in text.split("\n"):
        reader.read(raw)
    lines = reader.lines
    if len(lines) > MAX_FIRST_LINES + MAX_LAST_LINES:
        return (*lines[:MAX_FIRST_LINES], *lines[-MAX_LAST_LINES:])
    return tuple(lines)


class _Reader:
    """Who speaks, from line to line: the program, its agent, or a tool of the agent."""

    def __init__(self, *, mixed: bool) -> None:
        self.mixed = mixed
        self.lines: list[Line] = []
        self._in_tool = self._in_fence = self._in_prose = self._has_output = False
        self._begins = True
        self._depth = 0
        """Of brackets: inside of JSON a line that begins with a quote quotes nothing."""

    def read(self, raw: str) -> None:
        if not raw.strip():
            self._in_prose, self._begins, self._depth = False, True, 0
        elif len(raw) > MAX_LINE_CHARS:
            pass
        elif self._in_fence:
            self._in_fence = not _FENCE.match(raw)
            self._in_tool = False
        elif _TOOL_OPENS.match(raw):
            self._open_tool(raw)
        else:
            is_below = _BELOW.match(raw) is not None
            if not (self._in_tool and self._is_output(raw, is_below=is_below)):
                self._read_speech(raw, is_below=is_below)

    def _open_tool(self, raw: str) -> None:
        self._in_fence = bool(_FENCE.match(raw))
        # What a tool prints may look like a call of its own.
        is_printed = raw.lstrip()[:1] not in "⏺●✓✔"
        self._has_output = self._in_tool and self._has_output and is_printed
        self._in_tool, self._in_prose = not self._in_fence, False

    def _is_output(self, raw: str, *, is_below: bool) -> bool:
        """Whether the tool still prints. The second `⎿` below a call is the program's."""
        if not _TOOL_ENDS.match(raw) and not (is_below and self._has_output):
            self._has_output = self._has_output or is_below
            return True
        self._in_tool, self._begins = False, True
        return False

    def _read_speech(self, raw: str, *, is_below: bool) -> None:
        if is_below:
            raw = raw[raw.index("⎿") :]
            self._in_prose, self._begins = False, True
        elif _SPEAKS_BANNER.match(raw):
            self._in_prose, self._begins = False, True
        elif _AGENT_SPEAKS.match(raw):
            self._in_prose = True
        if (self._in_prose and self.mixed) or (self._depth <= 0 and _SHOWN.match(raw)):
            self._begins = True
            return
        self._depth += sum(map(raw.count, "{[")) - sum(map(raw.count, "}]"))
        line = read_line(raw, begins=self._begins)
        if line.text:
            self.lines.append(line)
            self._begins = False


def read_line(raw: str, *, begins: bool = True) -> Line:
    """Take times, levels and names of loggers from the front of a line."""
    bare = _BOX.sub("", raw)
    is_decorated = _BULLET.search(raw, 0, len(raw) - len(bare)) is not None
    front = _Front(bare)
    front.strip()
    return Line(
        text=front.rest.rstrip(" \t│┃|╮╯"),
        has_level=front.has_level,
        is_quiet=front.is_quiet,
        begins=begins or is_decorated or front.has_time or front.has_level,
        is_deep=raw.startswith(("    ", "\t")) and not is_decorated,
    )


class _Front:
    """What loggers put before a line, taken away piece by piece."""

    def __init__(self, line: str) -> None:
        self.rest = line
        self.has_level = self.is_quiet = self.has_time = False

    def strip(self) -> None:
        for _ in range(_MAX_PREFIXES):
            end = self._time() or self._level() or self._tag()
            if not end:
                return
            self.rest = _BOX.sub("", self.rest[end:])

    def _time(self) -> int:
        found = next((m for p in _PREFIXES if (m := p.match(self.rest))), None)
        self.has_time = self.has_time or found is not None
        return 0 if found is None else found.end()

    def _level(self) -> int:
        found = _LEVEL.match(self.rest)
        if found is None:
            return 0
        level = (found["a"] or found["b"] or found["c"]).lower()
        self.has_level = self.has_level or level in _ERRORS
        self.is_quiet = level in _QUIET and not self.has_level
        return found.end()

    def _tag(self) -> int:
        """A name in brackets is a logger's behind a time or a level, or in lower case."""
        if not (self.has_time or self.has_level or self.rest[1:2].islower()):
            return 0
        found = _TAG.match(self.rest)
        return 0 if found is None else found.end()
