"""
A text as the model sees it: hashed n-grams of its beginning and its end, and its lines' shape.

Nothing is counted, only present or not, and nothing but a bucket is kept of an n-gram, so that rows
for training can be handed on without the texts that they come from.
"""

import re
from collections.abc import Callable, Collection, Iterator
from itertools import chain, pairwise
from struct import unpack_from
from typing import Literal
from zlib import crc32

from msgspec import Struct

from fallbackd.classify.error_lines import STATUS_LINE, opens_like_error, without_frames
from fallbackd.classify.languages import in_english
from fallbackd_conversations.redact import strip_escapes

BUCKETS = 1_044_023
"""An n-gram is known by one of these; the weights of most are left out of the shipped file. A prime
number, since the remainder of an n-gram's bytes is its bucket."""

HEAD_CHARS, TAIL_CHARS = 600, 1_800
"""Bounds on the cost of a long text: its beginning and its end are read."""
_LAST_LINES, _LAST_CHARS = 3, 600

PARTS = ("whole", "last", "shape", "cause")
_SIZES = {"whole": (3, 5), "last": (3, 5), "cause": (4,)}
"""
Sizes of n-grams, in bytes: those that tell a failure best are not those that tell its reason best.
"""
_WINDOW = 8


class Features(Struct, frozen=True):
    """Buckets by part, without doubles."""

    whole: Collection[int]
    last: Collection[int]
    """Features of the last lines alone: a failure that ended a run stands there."""
    shape: Collection[int]
    cause: Collection[int]
    """Features of the whole again, for the reason."""


def features_of(text: str, http_status: int | None = None, kind: str | None = None) -> Features:
    """Cut, normalise and hash. An empty text has a shape as well."""
    read = _Reading.of(text)
    return Features(
        whole=_hashed("whole", read.judged),
        last=_hashed("last", _last_of(read.said)),
        shape={_checksum(name) for name in read.shape(http_status, kind)},
        cause=_hashed("cause", read.said),
    )


def named_features(
    text: str, http_status: int | None = None, kind: str | None = None
) -> dict[str, dict[int, str]]:
    """
    Names of hashed features, by part and bucket: n-grams, words (`w …`), properties of the lines.
    """
    read = _Reading.of(text)
    return {
        "whole": dict(_named("whole", read.judged)),
        "last": dict(_named("last", _last_of(read.said))),
        "shape": {_checksum(name): name for name in read.shape(http_status, kind)},
        "cause": dict(_named("cause", read.said)),
    }


class _Reading(Struct, frozen=True):
    text: str
    said: str
    """Normalised; in another language, what it says in English stands below."""
    judged: str
    """
    Text judged to be a failure or none: for a statement in another language the English alone, so
    that languages with many and with few samples look alike.
    """
    phrases: int
    trace: str
    """Part of the text that is the trace of an exception."""

    @classmethod
    def of(cls, text: str) -> "_Reading":
        text = _cut(text)
        bare = without_frames(text)
        said = plain = _normalised(bare)
        english = in_english(plain)
        if english:
            said = plain = f"{plain}\n{' '.join(english)}"
        if english and is_short(text):
            plain = " ".join((*english, *_CODES.findall(plain)))
        return cls(text, said, plain, len(english), _trace_in(text, bare))

    def shape(self, http_status: int | None, kind: str | None) -> tuple[str, ...]:
        known = f"phrases={_step(self.phrases, (0, 1, 2, 3, 4))}"
        trace = f"trace={self.trace}"
        return (*shape_of(self.text, http_status), known, trace, *_of_kind(kind))


_OPENS_TRACE = re.compile(
    r"\s*(?:Traceback \(|Exception in thread|panic:|fatal error:|thread '|goroutine \d|file:///"
    r"|node:|Unhandled|Uncaught|  File \"|(?:\w{1,60}\.){0,6}\w{0,60}(?:Error|Exception)\b)"
)
_BESIDE_TRACE = 6
"""Lines that are no frames, in a text that is a trace and nothing else."""


def _trace_in(text: str, bare: str) -> str:
    if len(bare) == len(text):
        return "none"
    if sum(1 for line in bare.split("\n") if line.strip()) > _BESIDE_TRACE:
        return "part"
    return "whole" if _OPENS_TRACE.match(text) else "most"


SHORT_CHARS, SHORT_LINES = 400, 3


def is_short(text: str) -> bool:
    """One statement rather than the transcript of a run."""
    return len(text) <= SHORT_CHARS and len(text.strip().split("\n")) <= SHORT_LINES


Manner = Literal["transcript", "statement", "foreign"]
"""`statement`: a short text or a trace; `foreign`: a short one in another language."""


def manner_of(text: str) -> Manner:
    read = _Reading.of(text)
    if is_short(text):
        return "foreign" if read.phrases else "statement"
    return "statement" if read.trace == "whole" else "transcript"


_CODES = re.compile(r"\b(?:[1-5]\d\d|\w{2,30}_\w{2,30}|\w{0,30}(?:error|exception))\b|\{\"|\|")


def _checksum(name: str) -> int:
    return crc32(name.encode("utf-8", "replace")) % BUCKETS


def _last_of(plain: str) -> str:
    lines = [one for one in plain.split("\n") if one.strip()]
    return "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARS:]


def _of_kind(kind: str | None) -> tuple[str, ...]:
    """Feature of the backend: an API answers an error more often than an agent prints one."""
    if kind is None:
        return ()
    return (f"kind={kind.removesuffix('-cli')}", f"api={kind.endswith('-http')}")


def _cut(text: str) -> str:
    # Escapes do not count: cut coarsely first, strip them, then cut to the exact length.
    if len(text) > 2 * (HEAD_CHARS + TAIL_CHARS):
        text = f"{text[: 2 * HEAD_CHARS]}\n{text[-2 * TAIL_CHARS :]}"
    text = strip_escapes(text).replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    return text


_NUMBER = re.compile(r"(?<![\d.])(?![1-5]\d\d(?![\d.]))\d[\d.]*|(?<=\.)\d+")
_BLANKS = re.compile(r"[ \t]+")
_RULERS = re.compile(r"([-=─━_*#])\1{3,}")
_DIGIT = re.compile(r"\d")


# In lower case: what names a place, a model or one request tells nothing of a failure.
_NAMES = re.compile(
    r"(?P<url>\b(?:https?|wss?)://[^\s\"'<>()\[\]{},]+)"
    r"|(?P<id>\b(?:[0-9a-f]{8}-[0-9a-f-]{20,}|(?=[a-f]*\d)[0-9a-f]{12,}"
    r"|(?:req|msg|org|proj|resp|chatcmpl|call|toolu|sess|thread|user|gen|cmpl)[_-](?=\w*\d)\w{8,})\b)"
    r"|(?P<model>\b(?:gpt|claude|gemini|llama|qwen|deepseek|mi[sx]tral|kimi|glm|grok|command|gemma"
    r"|phi|nova|ernie|minimax|sonnet|opus|haiku|codex)[-_/][\w.:@/-]{0,60}\d[\w.:@/-]{0,60}\w)"
    r"|(?P<path>(?<![\w:/.])(?:~|\.{1,2}|[a-z]:)?[\\/](?:[\w.@+-]{1,80}[\\/]){1,20}[\w.@+-]{0,80})"
    r"|(?P<host>\b(?:[a-z0-9-]{1,40}\.){1,5}(?:com|net|org|io|ai|dev|cn|invalid|example|test|local"
    r"|internal|cloud|app|co)\b(?!\())"
)


def _normalised(text: str) -> str:
    """Lower case, without names and the values of numbers other than those that may be a status."""
    text = text.replace("’", "'").lower()
    text = _NAMES.sub(lambda found: f"<{found.lastgroup}>", text)
    text = _NUMBER.sub(lambda found: _DIGIT.sub("0", found[0]), text)
    return _RULERS.sub(r"\1\1\1\1", _BLANKS.sub(" ", text))


_WORD = re.compile(
    r"[a-z][a-z']{0,30}|\d{1,3}|[\u00e0-\u024f\u0400-\u04ff]{1,30}"
    r"|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
)


def _hashed(part: str, text: str) -> set[int]:
    """Buckets of the n-grams of bytes, as numbers in the first byte's order, and of the words."""
    data = f"\n{text}\n".encode("utf-8", "replace")
    padded = data + bytes(2 * _WINDOW)
    masks = [(1 << 8 * size) - 1 for size in _SIZES[part]]
    grams: set[int] = set()
    for begin in range(_WINDOW):
        # Every eighth byte a number of eight bytes: eight times that is all of them.
        count = (len(data) - begin + _WINDOW - 1) // _WINDOW
        windows = unpack_from(f"<{count}Q", padded, begin)
        for mask in masks:
            grams.update(map(mask.__and__, windows))
    found = {gram % BUCKETS for gram in grams}
    found.update([gram % BUCKETS for gram in _sums_of_words(text)])
    return found


def _sums_of_words(text: str) -> Iterator[int]:
    """Checksums of the words and, carried on from one to the next, of their pairs."""
    words = " ".join(_WORD.findall(text)).encode("utf-8", "replace").split(b" ")
    sums = list(map(crc32, words))
    return chain(sums, map(crc32, words[1:], sums))


def _named(part: str, text: str) -> Iterator[tuple[int, str]]:
    """Features found by `_hashed`, with names; many times slower."""
    data = f"\n{text}\n".encode("utf-8", "replace")
    padded = data + bytes(_WINDOW)
    for size in _SIZES[part]:
        for at in range(len(data)):
            gram = padded[at : at + size]
            name = gram.rstrip(b"\0").decode("utf-8", "replace")
            yield int.from_bytes(gram, "little") % BUCKETS, name
    words = _WORD.findall(text) or [""]
    names = chain(words, map(" ".join, pairwise(words)))
    for bucket, name in zip(_sums_of_words(text), names, strict=True):
        yield bucket % BUCKETS, f"w {name}"


# The shape.

_LEVEL = re.compile(
    r"\b(?:error|fatal|failed|failure|exception|warn(?:ing)?|info|debug|panic|traceback|critical"
    r"|denied|unable|cannot|invalid)\b"
)
_CODE = re.compile(
    r"\s*(?:def|class|import|from|return|if|for|const|let|var|func|fn|pub|async|export|try|except"
    r"|raise|throw|case)\b"
)
_CODE_INSIDE = re.compile(r"=>|\(\)|==|!=|\+=")
_FRAME = re.compile(r'\s*at .*\d|\s*File "')
_PROMPT = re.compile(r"\s*(?:[\w@~:/.-]{1,60})?[$%❯›>] \S")
_BULLET = re.compile(r"\s*(?:[-*•] |\d+[.)] )")
_CHANGED = re.compile(r"\s*(?:\d+\s*)?[+-](?!-)")
_STAMP = re.compile(r"\W{0,3}\d{4}-\d\d-\d\d[T ]\d")
_HEADING = re.compile(r"#{1,6} ")
_TOOL = re.compile(r"^\s*[⏺●•]\s*(?:Bash|Read|Update|Write|Edit|Ran|Web|Grep)|^exec$|^\$ ", re.M)

_SHARES: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("code", lambda x: x.rstrip()[-1:] in "{};" or _CODE.match(x) or _CODE_INSIDE.search(x)),
    ("quote", lambda x: x.lstrip()[:1] == ">"),
    ("table", lambda x: x.lstrip()[:1] == "|" or x.count("|") > 2),
    ("bullet", _BULLET.match),
    ("diff", _CHANGED.match),
    ("deep", lambda x: x.startswith(("    ", "\t"))),
    ("level", lambda x: _LEVEL.search(x.lower())),
    ("json", lambda x: x.lstrip()[:1] in ("{", "[")),
    ("prose", lambda x: len(x.split()) > 7 and x.rstrip()[-1:] in (".", "!", "?", ":")),
    ("frames", _FRAME.match),
    ("code-quotes", lambda x: "`" in x),
    ("tool-output", lambda x: x.lstrip()[:1] in ("⎿", "│", "└")),
    ("marks", lambda x: x.lstrip()[:1] in ("⏺", "●", "✦", "•")),
    ("stamp", _STAMP.match),
    ("prompt", _PROMPT.match),
    ("heading", _HEADING.match),
)
_AGENTS = (
    r"(?:claude|codex|gemini|opencode|aider|goose|qwen|kimi|crush|hermes|copilot|numasec|openclaw"
    r"|cursor|amp|cline|roo|kilo|auggie|droid|openhands|plandex|continue|warp|zed|windsurf|kiro"
    r"|amazonq|q chat|antigravity|oh-my-pi|letta|openai|anthropic)"
)
_PROVIDERS = (
    r"(?:openai|anthropic|gemini|vertex|generativelanguage|azure|bedrock|openrouter|groq|mistral"
    r"|cohere|litellm|deepseek|moonshot|dashscope|zhipu|bigmodel|minimax|volces|siliconflow|xai"
    r"|x\.ai|together|fireworks|cerebras|perplexity|nvidia|ollama|vllm|llama|lmstudio|tgi"
    r"|hugging ?face|replicate|yandexgpt|gpt-|llm|chat/completions|v1/messages|api[ _-]?key"
    r"|completion|prompt)"
)
_AGENT = re.compile(rf"{_AGENTS}\b")
_HAS: tuple[tuple[str, re.Pattern[str]], ...] = (  # in the text in lower case
    ("agent", re.compile(rf"(?<![a-z]){_AGENTS}(?![a-z])")),
    ("agent-code", re.compile(rf"(?:[\\/@_.-]|bunfs.{{0,20}}){_AGENTS}[\w-]{{0,20}}[\\/]")),
    ("agent-run", re.compile(rf"^.{{0,80}}[$%>❯#] ?(?:npx \S* ?)?{_AGENTS}\b", re.M)),
    ("agent-says", re.compile(rf"^\W{{0,3}}{_AGENTS}\W{{0,3}} ?[:>]", re.M)),
    ("provider", re.compile(rf"(?<![a-z]){_PROVIDERS}")),
    ("tokens", re.compile(r"\btokens?\b|\bmodels?\b|模型|モデル|모델|модел")),
    (
        "failed",
        re.compile(
            r"fehler|erreur|erro[r]?\b|errore|ошибк|错误|錯誤|エラー|오류|失败|失敗|실패|خطأ|hata|błąd"
            r"|falha|échou|échec|fall[oó]|异常|無法|无法|konnte nicht|impossible de|não foi poss"
        ),
    ),
    ("limit", re.compile(r"limit|quota|límite|lim[ií]te|лимит|额度|限制|上限|한도|الحد")),
    ("fence", re.compile(r"```")),
    ("source-file", re.compile(r"\.(?:py|ts|js|go|rs|md|java)\b")),
    ("source-line", re.compile(r"\.(?:py|ts|js|go|rs|java|md):\d")),
    ("I", re.compile(r"\b(?:i|i'll|i've|let me)\b")),
    ("you", re.compile(r"\byou(?:r|'ve|'re)?\b")),
    ("url", re.compile(r"https?://")),
    ("reset", re.compile(r"reset|try again|retry")),
    ("test", re.compile(r"\b(?:test|assert|mock|expect)")),
)


_FIRST_LINES, _MOST_LINES = 10, 40
"""Lines that are looked at: of many the first and the last ones."""


def shape_of(text: str, http_status: int | None) -> list[str]:
    """`name=value` for every property of the lines; values are steps, not amounts."""
    lines = [line for line in text.split("\n") if line.strip()]
    lines = lines[:_FIRST_LINES] + lines[max(_FIRST_LINES, len(lines) - _MOST_LINES) :]
    count = max(1, len(lines))
    status = None if http_status is None else http_status // 100
    found = [
        f"status={http_status}",
        f"status-class={status}",
        f"lines={_step(len(lines), (1, 2, 3, 5, 8, 12, 20))}",
        f"chars={_step(len(text), (40, 80, 150, 250, 400, 700, 1200))}",
        f"longest={_step(max(map(len, lines), default=0), (40, 80, 120, 200, 400, 800))}",
    ]
    for name, is_one in _SHARES:
        share = sum(1 for line in lines if is_one(line)) / count
        found.append(f"share-{name}={_step(share, (0, 0.1, 0.25, 0.5, 0.75, 0.99))}")
    low = text.lower()
    found += [f"has-{name}={pattern.search(low) is not None}" for name, pattern in _HAS]
    found.append(f"has-tool={_TOOL.search(text) is not None}")
    found.append(f"has-agent-last={_AGENT.search(lines[-1].lower() if lines else '') is not None}")
    found += _shape_of_line("first", lines[0] if lines else "")
    found += _shape_of_line("last", lines[-1] if lines else "")
    return found


def _shape_of_line(name: str, line: str) -> list[str]:
    bare = line.strip()
    first, last = bare[:1], bare[-1:]
    levels = ",".join(sorted(set(_LEVEL.findall(bare.lower())))[:2])
    return [
        f"{name}-begins={'a' if first.isalnum() else first}",
        f"{name}-ends={'a' if last.isalnum() else last}",
        f"{name}-case={_case(first)}",
        f"{name}-levels={levels}",
        f"{name}-chars={_step(len(bare), (20, 40, 80, 120, 200, 400))}",
        f"{name}-indent={min(4, len(line) - len(line.lstrip()))}",
        f"{name}-opens={opens_like_error(bare) or STATUS_LINE.match(bare) is not None}",
    ]


def _case(first: str) -> str:
    if first.isupper():
        return "upper"
    return "lower" if first.islower() else "digit" if first.isdigit() else "other"


def _step(amount: float, edges: tuple[float, ...]) -> int:
    return next((at for at, edge in enumerate(edges) if amount <= edge), len(edges))
