"""
Lines of a program's output: which may be its own statements, where they begin, whose they are.

Left out is what an agent says and what its tools print: calls and their output, diffs, code,
tables, lists, quotations, and frames of stack traces, whose names of files and functions
(`rateLimit.js`, `quota_exceeded`) read like failures; the exception's own line stays. What is left
loses its decoration: boxes, times, names of loggers. Its shape shows an error by its opening, a
service's words to a person, or prose.
"""

import re
from functools import lru_cache

import msgspec
from msgspec import Struct

from fallbackd.classify.rules import Found
from fallbackd.lib import foreign_json

_JAVASCRIPT = re.compile(
    r"^\s*at .{0,300}(?:[A-Za-z>]:\d+(?::\d+)?\)?|\((?:<anonymous>|native(?: code)?"
    r"|Native Method|Unknown Source|index \d+)\))\s*$"
)
"""Frames of JavaScript, and of Java as well."""
_MORE = re.compile(r"^\s*\.\.\. \d+ (?:more|common frames)\b")
_PYTHON = re.compile(r'^\s*File ".{1,400}", line \d+(?:, in .+)?\s*$')
_RUST = re.compile(
    r"^\s{2,}\d+:\s+(?:0x[0-9a-f]+ - )?(?:\S.{0,300}::\S.{0,300}|rust_\w+|_start|main)$"
)
_GO = re.compile(r"^\s+\S+\.go:\d+(?: \+0x[0-9a-f]+)?\s*$")
_RUBY = re.compile(r"^\s+(?:\d+: )?from \S.{0,300}:\d+(?::in .{1,200})?$")
_SOURCE = re.compile(r"^\s*\S+\.(?:[cm]?[jt]sx?|py|go|rs|java|rb|php|cs|kt):\d+(?::\d+)?:?\s*$")
_PANIC_PLACE = re.compile(r"(panicked at )\S{1,300}:\d+:\d+:?")


_FRAMES = (_JAVASCRIPT, _PYTHON, _RUST, _GO, _RUBY, _SOURCE, _MORE)
_MAY_BE_FRAME = re.compile(
    r"^[ \t]*(?:at .|\.\.\. \d|File \"|\d+:|from \S|\S+\.[a-z]{2,4}:\d)", re.M
)
"""Begin of a frame, sought once in a text: most texts have none."""


def is_frame(line: str) -> bool:
    """Frames whose line says so by itself; those of Go and the source below are not seen here."""
    return _MAY_BE_FRAME.match(line) is not None and any(one.match(line) for one in _FRAMES)


def has_frames(text: str) -> bool:
    return _MAY_BE_FRAME.search(text) is not None and any(map(is_frame, text.split("\n")))


def without_frames(text: str) -> str:
    """Leave out frames, with the source that some of them quote below themselves."""
    if not has_frames(text):
        return text
    lines = text.split("\n")
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


MAX_LINE_CHARS = 4_000
"""No program states its failure in a longer line."""

MAX_FIRST_LINES, MAX_LAST_LINES = 5, 35
"""Bounds for many candidates: the first and the last ones count."""

MAX_BLOCK_LINES, MAX_BLOCK_CHARS = 14, 1_200
"""A statement over several lines, as terminals wrap it and JSON is printed, is no longer."""


class Line(Struct, frozen=True):
    text: str
    """Text without decoration."""
    has_level: bool = False
    """A logger has marked it as an error."""
    is_quiet: bool = False
    """A logger has marked it as information."""
    begins: bool = True
    """True for a line after an empty one, or a decorated one: it continues nothing."""
    is_deep: bool = False
    """Indented as code is."""


_BOX = re.compile(r"^[\s│┃╭╰╮╯─■⏺●•×✕✖✗⨯❌⚠⎿›└├⚕✘🚫⛔❗☠\ufe0f‼!！]+")


def _without_box(line: str) -> str:
    found = _BOX.match(line)
    return line if found is None else line[found.end() :]


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


_FIRST_PERSON = re.compile(
    r"^\s*I(?:'ve| have)? (?:\w{2,20}ed|think|saw|see|will|made|found|guess|believe)\b"
)


def is_agents_words(line: str) -> bool:
    return bool(_AGENT_SPEAKS.match(line) or _FIRST_PERSON.match(line))


_BELOW = re.compile(r"^\s*(?:>\s*)?⎿")
"""Below a call it is the tool's output, once; below what the agent says it is the program's."""

# Lines that show something instead of saying it: lists, tables, quotations, diffs, headings.
_SHOWN = re.compile(
    r"^\s*(?:[-+*] |[-+][^\s-]|\d{1,2}[.)] |> (?!litellm\.)|#{1,6} |\|.*\|\s*$|//|/\*|<!--"
    r"|(?!\"[\w.-]+\"\s*:|'[\w.-]+'(?:\s*:| is not recognized))[\"'`“”«„‘][^\"{]"
    r"|[✻✽✶] |\[[ x]\] |☐|☑|✅|💡|🔧|🛡|📝|\d+ [+-](?! ?[{\[]) ?|[0-9a-f]{7,12} \w"
    r"|(?!status|code|error|exit)[\w.-]+: ?(?:\d[\d_.]*|true|false|null)\s*$"
    r"|\S+\.(?:py|[jt]sx?|go|rs|java|rb|c|cpp|h|md|json|ya?ml|toml|sh|txt|php|cs|kt|sql)"
    r":\d+(?!\d{0,5}:in [`']))"
)


_MARK = re.compile(r"^\s*(?:[-+*] \[[ x]\] |[-+*>|•] ?|#{1,6} |\d{1,2}[.)] |//+ ?|⎿ *|[\"'`“”«„‘])")


def without_marks(text: str) -> str:
    """Return the lines as if shown text were said."""
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
    """Decode a string as JSON writes it, with its quotes or without them."""
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
    """Follows the speaker from line to line: the program, its agent, or a tool of the agent."""

    def __init__(self, *, mixed: bool) -> None:
        self.mixed = mixed
        self.lines: list[Line] = []
        self._in_tool = self._in_fence = self._in_prose = self._has_output = False
        self._begins = True
        self._depth = 0
        """Depth of brackets: inside of JSON a line that begins with a quote quotes nothing."""

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
        """Check whether the tool still prints. The second `⎿` below a call is the program's."""
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
    bare = _without_box(raw)
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
    """Takes away the prefix of a logger, piece by piece."""

    def __init__(self, line: str) -> None:
        self.rest = line
        self.has_level = self.is_quiet = self.has_time = False

    def strip(self) -> None:
        for _ in range(_MAX_PREFIXES):
            end = self._time() or self._level() or self._tag()
            if not end:
                return
            self.rest = _without_box(self.rest[end:])

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


_OTHERS = re.compile(
    # Services beside the model: their trouble is a tool's.
    r"api\.github\.com|raw\.githubusercontent"
    r"|(?<!docs\.)\bgithub\.com[:/](?!\S{0,200}(?:copilot|issues?/new))"
    r"|docker\.(?:io|com)|ghcr\.io|registry\.(?:npmjs|yarnpkg)|npmjs\.org|pypi\.org|pythonhosted"
    r"|crates\.io"
    r"|maven|rubygems|gitlab\.|bitbucket\.|debian\.org|ubuntu\.com|sentry\.io|datadog"
    r"|proxy\.golang|hub\.docker|(?:localhost|127\.0\.0\.1|0\.0\.0\.0|::1)\]?[:\s]+(?:port )?"
    r"(?:5432|3306|6379|27017|9200|5672|9092|1433|2181|8500|22|25|587)\b|\bport (?:5432|3306|6379"
    r"|27017)\b"
    r"|\bAssertionError\b|/tests?/|\btest_\w+\.py|\.test\.[jt]sx?\b|\.spec\.[jt]s\b"
    r"|\bdatabase\b|\b(?:postgres|mysql|redis|mongo|kafka|rabbitmq|elasticsearch)\w{0,20}\b"
    r"|when calling the (?!Invoke|Converse|Retrieve)\w{1,60} operation|\b(?:mock|stub|fixture)s?\b"
    # Words of an agent about its own work.
    r"|\bso I\b|(?-i:\bI)(?:'ve| have)? (?:\w{2,20}ed|saw|will|made|found)\b|\blet (?:me|us)\b"
    r"|\bthis (?:class|function|method|test|module)\b"
    r"|pull rate limit|toomanyrequests: ",
    re.I,
)
# Calls that a program makes beside its turn, which continues when they fail.
_SIDE_CALLS = re.compile(
    r"\b(?:telemetry|tracing|event logging|analytics|failed to export|opentelemetry|otlp|statsig)"
    r"|(?:session|chat|conversation|thread)[- ](?:title|description|name|summary)"
    r"|(?:generate|create|update) (?:\w+ ){0,2}(?:title|summary)\b|\bMCP\b|\bmcp[_ -]?server"
    r"|auto-?update|update check|check(?:ing)? for updates",
    re.I,
)
_OTHER_PROGRAMS = re.compile(
    r"(?:npm|yarn|pnpm|pip3?|git|gh|curl|wget|psql|mysql|docker|podman|kubectl|helm"
    r"|make(?:\[\d+\])?"
    r"|cargo|rustc|go|java|mvn|gradlew?|apt(?:-get)?|ssh|scp|rsync|grep|rg|sed|awk|find|cat|ls|cp"
    r"|mv|rm|pytest|jest|vitest|tsc|eslint|redis-cli|mongosh?|terraform|ansible\S*|aws|gcloud|az"
    r"|nginx|systemctl|remote|hint|FAIL|FAILED|PASS|ok|not ok|E|W|tar|unzip|ping|nslookup|dig|host"
    r"|nc|telnet|openssl|composer|bundle|gem|brew|conda|poetry|uv)(?: \w+)?(?:: |!| ERR!| error )"
    r"|tool [\w-]{1,40} (?:failed|error)|(?:shell|bash) command failed"
    # Exceptions of a program's own code say nothing of a provider.
    r"|(?:\w{1,40}\.){0,4}(?:ModuleNotFound|Key|Name|Attribute|Import|Index|Syntax|Indentation"
    r"|ZeroDivision|Recursion|Lookup|Arithmetic|Assertion)Error\b"
    r"|npm (?:ERR!|error|warn)|verbose stack|\d+ (?:verbose|silly|error|warn|info) "
    r"|Error response from daemon|Error from server|The connection to the server"
    r"|fatal: (?:unable to access|could not read|repository|not a git|authentication failed for)"
    r"|(?:psycopg\w*|sqlalchemy|redis|pymongo|django|flask|werkzeug|sqlite3|mysql|asyncpg|kafka"
    r"|celery|selenium|playwright|subprocess|AssertionError|org\.apache|java\.sql|com\.mysql"
    r"|PG::|ActiveRecord|QueryFailedError|PrismaClient|Sequelize|Mongo\w+Error)\b"
    r"|could not connect to server|ssh: |Permission denied \(publickey"
    r"|\[ERROR\] Failed to execute goal|BUILD FAILED|FAILURE: Build|error\[E\d+|error TS\d+",
    re.I,
)


def is_of_another(text: str) -> bool:
    """Signed by another program, or about another service than a model's."""
    return bool(_OTHER_PROGRAMS.match(text) or _OTHERS.search(text[:1_000]) or is_side_call(text))


def is_side_call(text: str) -> bool:
    return bool(_SIDE_CALLS.search(text[:1_000]))


_STATUS = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?[ :]*(?:error |status |code ){0,3}"
    r"|status(?:[ _-]?code)?[\"']?\s{0,3}[:= ]\s{0,3}[\"']?"
    r"|(?:error|api error|code|failed|upstream|cloudflare|responded with|response|exception"
    r"|unexpected status|\w{1,60}(?:error|exception))"
    r"[: (\"'=\[]{1,4}(?:code: |status |HTTP )?|last status: |\[)"
    r"(?P<a>[1-5]\d\d)\b(?!\s*(?:ms|s\b|MB|tokens|\.\d|,\d|%))"
    r"|^\W{0,4}(?P<b>[45]\d\d)(?=\s+[A-Z{\"\[<a-z]|:|$|\s*status code)"
    r"|\b(?P<c>[45]\d\d) (?:Too Many Requests|Unauthorized|Forbidden|Bad Gateway|Bad Request"
    r"|Service Unavailable|Internal Server Error|Gateway Time-?out|Payment Required|Not Found)",
    re.I,
)
_ONE_STATUS = re.compile(r"[1-5]\d\d")
MAX_OPENING_CHARS = 300
STATUS_LINE = re.compile(
    r"(?:HTTP[/ ]?[\d.]*[ :]*[45]\d\d\b|HTTP (?:response )?error"
    r"|status(?:[ _-]?code)?[:= ]+[45]\d\d\b"
    r"|\[?[45]\d\d\]?:?\s+"
    r"(?:[A-Z_]{6,}\b|[A-Z][\w']+(?:\s+[A-Z]\w+){0,6}\s*(?:[.:]?$|: )|\{|\"|<|[A-Z][\w']+.*[.!]$"
    r"|Insufficient|status code|No |The |You|This |Too |Invalid|Model|Request|Rate))",
    re.I,
)
_ERROR_OPENING = re.compile(
    r"\[?(?:fatal|error|err|critical)\]?\s*[:\]!]|\[?(?:fatal|error|critical)\]?\s+(?=[\[({]"
    r"|\w+ error)"
    r"|(?:fatal )?error(?! (?:handling|budget|reporting|logging|messages|codes|rates?)\b)[: (\]]"
    r"|error$"
    r"|[\w.]{0,120}(?:error|exception)(?:\s*[\[(][^\])]{0,80}[\])])?\s*(?:[:(]|$)"
    r"|(?-i:[\w.]{0,120}Timeout)\s*[:(]"
    r"|(?:Object )?\{(?!.{0,60}\"type\":\s*\"(?:item\.|user|assistant|tool|message)).{0,200}?"
    r"\b(?:error|retryMessage|api_error_status)\b\"?\s*:\s*(?!null|false|\"\")[\"{\d]"
    # `OAuth error: …`, `sub-agent error: …`; side calls of a program are not its failure.
    r"|\[?(?:[\w/.'-]{1,40} ){1,4}(?:error|exception)(?: \d{3})?\]? ?[:(]|\S{1,80} {1,20}(?:error"
    r"|fatal) +\S"
    r"|[\w-]{1,60} : |(?=[A-Z0-9_]*(?:ERROR|FAIL))[A-Z0-9_]{6,60}: |\w{1,60}: (?:fatal )?error\b"
    r"|unhandled ?(?:promise ?)?(?:rejection|exception|error)|uncaught |panic\b|caused by:|cause: "
    r"|api (?:error|request failed|call failed)\b|request (?:failed|error)|(?:reason|error message"
    r"|message|details?): |ran into this error|(?:an )?(?:unexpected "
    r"|internal ){0,2}error (?:has )?occurred"
    r"|unexpected error|reqwest::|socket\.timeout: |messages\.\d+|UND_ERR_|net::ERR_|stream id \d"
    r"|http2: "
    r"|error (?:when|while|from|code|msg|running|reading|(?!handling|reporting|logging)\w+ing)\b"
    r"|unexpected status"
    r"|(?:execution|model call|completion|generation|prompt|query|turn|session|run|agent|login"
    r"|authentication|connection|handshake|stream|summar\w+|compaction) failed"
    r"|exceeded retry limit|agent terminated|llm (?:provider|request|call)"
    r"|failed(?: after \d+ (?:attempts|retries))?[:.] |failed (?:to|with|while|after) "
    r"|(?:[\w./-]{1,40} ){1,7}failed(?: (?:with|while|after)\b|[:.] | \(|$)"
    r"|stream (?:disconnected|error)|reconnecting\.\.\.|attempt \d+ failed|internal error"
    r"|provider (?:api )?(?:returned|error)|upstream |retrying(?: (?:after|in|\d)|:)|retry \d"
    r"|falling back from|unsuccessful |server error|bad request|received (?:error|fatal)"
    r"|dial tcp|(?:get|post) \\?\"https?://|\[errno|(?-i:(?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{1,60}): "
    r"|(?:fehler|erreur|errore|erro|エラー|错误|خطأ|ошибка) ?[::]"
    r"|[✕✖✗❌⚠×]|\[api error|last error",
    re.I,
)


@lru_cache(maxsize=256)
def opens_like_error(line: str) -> bool:
    return bool(_ERROR_OPENING.match(line[:MAX_OPENING_CHARS]))


def opens_error(line: Line) -> bool:
    text = line.text
    return line.has_level or opens_like_error(text) or bool(STATUS_LINE.match(text))


def status_in(line: str) -> int | None:
    found = _STATUS.search(line) if _ONE_STATUS.search(line) else None
    if found is None:
        return None
    status = int(found["a"] or found["b"] or found["c"])
    return status if status >= 400 else None


TYPE_NAME = re.compile(
    r"(?:(?:\w{1,40} )?(?:[Ee]rror|[Ee]xception|[Cc]ause): )?(?:\w{1,60}\.){0,6}"
    r"(\w{1,80}(?:Error|Exception|Timeout|Exceeded)|Timeout)\b(?=\s*[:(\[]|$)"
)
TYPE_INSIDE = re.compile(r"\b([A-Z]\w{1,60}(?:Error|Exception|Timeout))(?=[:(\]] ?| -|$)")


def type_names(line: str) -> tuple[str, ...]:
    """Names of exceptions at the beginning of a line."""
    found = TYPE_NAME.match(line)
    return (found[1].lower(),) if found else ()


LEAD = re.compile(
    r"(?:sorry, |oops[,!] )?(?:you(?:'re|'ve| are| have)?|the|your|our|this)\s(?:\w+ ){0,3}"
    r"|(?-i:[A-Z])[\w.-]+ (?:\w+ ){0,2}",
    re.I,
)
"""Words before the statement itself: `Our servers are currently overloaded.`"""


def is_statement(line: str, found: Found, *, is_bare: bool) -> bool:
    """The line says this and little else: `Too many requests`, not `Timeouts are now set to …`."""
    rest, line = line[found.end() :], first_sentence(line)
    if _SHOWS_STATE.match(rest):
        return False
    if re.match(r"\w{0,12}\s*(?:[.:·∙•|,;!。，(\[{\-–—]|$)", rest) and not PROSE.search(line):
        return True
    rest = re.split(r"[.!?;,](?:\s|$)", rest, maxsplit=1)[0]
    return is_bare and len(rest.split()) <= 6 and not PROSE.search(line)


_SHOWS_STATE = re.compile(
    r"\W{0,3}(?:remaining|left|status|info|headers?|handling|policy|window|of \d|checks?)\b", re.I
)

ADDRESSED = re.compile(
    r"(?:[\w.-]{1,20}: )?(?:sorry,? |oops[,!] |unfortunately,? )?(?:there(?:'s| is"
    r"| was) an? (?:issue|problem|error)"
    r"|response |conversation |configuration |sending this message |invalid params"
    r"|requested |input (?:is|tokens?) |all instances |engine "
    r"|to use \w+ |oauth |you(?:'ve|'re)?\b|your |we(?:'re"
    r"| are) (?:sorry"
    r"|currently|experiencing)|our |please |this (?:model|request|account|organization|api|key"
    r"|feature)|the (?:model|request|requested|response|output|content|message|resource|api|server"
    r"|service|ai|provider|engine|upstream"
    r"|usage|prompt|input|account|organization|conversation|selected|current)\b|unable to |cannot "
    r"|could not |couldn't |failed to |no (?:api|valid|auth|credentials|available|endpoints|such)"
    r"|requests? (?:to|was|rate|too|timed|limit|failed))",
    re.I,
)
"""Sentences of a service to the person before it."""

PROSE = re.compile(
    r"[`<>{}]|=>|->|::|\b(?:I|I'm|I've|I'll|we|we've|we'll|let me|let's|(?<!right )now|should"
    r"|would|shall"
    r"|because|whenever|instead|maps|handle[sd]?|handlers?|returns?|returned|raises?|raised|throws?"
    r"|retries|retried|fix(?:e[sd]|ing)?|adds?|added|tests?|tested|docs?|document(?:s|ed|ation)"
    r"|comes|came|means|e\.g\.|i\.e\.|functions?|class|middleware|webhook|script|config"
    r"|asked|why|wrote|said|says|answer(?:s|ed)|works|cover(?:s|ed)|pass(?:es|ed)?|still|me|my"
    r"|comparison|registry|yet"
    r"|refactor\w*|implement\w*|feature flag|commit|branch|dashboard|callers?|variable|parse[sd]?"
    r"|ETA|see also|example)\b|我|表示|如果|代码|测试|\bsrc/"
    r"|\w\.(?:py|ts|tsx|js|go|rs|md|java|rb)\b|\w\(\)",
)


_PATH = re.compile(r"(?<!\S)[~/][\w./-]{3,}")


def first_sentence(line: str) -> str:
    first = re.split(r"(?<=[.!?])\s", line[:250], maxsplit=1)[0]
    return _PATH.sub(" ", first)


def is_report(line: str, at: int) -> bool:
    """The first sentence is short, speaks to a person, and tells nothing of code."""
    first = first_sentence(line)
    return (
        at <= min(len(first), 80)
        and len(first) <= 240
        and not first.endswith(":")  # what a heading announces is shown, not said
        and ADDRESSED.match(line) is not None
        and PROSE.search(first) is None
        and not re.match(r"[^\"“]*[\"“]", first[:at])
    )
