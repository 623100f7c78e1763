"""
A text as the model sees it: hashed n-grams of its beginning and its end, and its lines' shape.

Nothing is counted, only present or not, and nothing but a bucket is kept of an n-gram, so that rows
for training can be handed on without the texts that they come from.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise, repeat
from zlib import crc32

from msgspec import Struct

from fallbackd_conversations.redact import strip_escapes

BUCKETS = 1 << 18
"""An n-gram is known by one of these; the weights of most are left out of the shipped file."""
_MASK = BUCKETS - 1

HEAD_CHARS, TAIL_CHARS = 600, 1_800
"""Of a long text its beginning and its end are read: it bounds what a text costs."""
_LAST_LINES, _LAST_CHARS = 3, 600
_SIZES = (3, 4, 5)

PARTS = ("whole", "last", "shape")
_BEGINS = {"whole": 0, "last": 0x51ED270B, "shape": 0x2C1B3C6D}
"""Where a checksum begins: the same n-gram in another part is another feature."""


class Features(Struct, frozen=True):
    """Buckets by part, without doubles."""

    whole: Collection[int]
    last: Collection[int]
    """Of the last lines alone: a failure that ended a run stands there."""
    shape: Collection[int]


def features_of(text: str, http_status: int | None = None, kind: str | None = None) -> Features:
    """Cut, normalise and hash. An empty text has a shape as well."""
    text = _cut(text)
    plain = _normalised(text)
    return Features(
        whole=_hashed_grams("whole", plain),
        last=_hashed_grams("last", _last_of(plain)),
        shape=buckets_of("shape", (*shape_of(text, http_status), *_of_kind(kind))),
    )


def named_features(
    text: str, http_status: int | None = None, kind: str | None = None
) -> dict[str, set[str]]:
    """What is hashed, by part: n-grams of characters, words (`w …`), properties of the lines."""
    text = _cut(text)
    plain = _normalised(text)
    return {
        "whole": {*_grams(plain), *_words(plain)},
        "last": {*_grams(_last_of(plain)), *_words(_last_of(plain))},
        "shape": {*shape_of(text, http_status), *_of_kind(kind)},
    }


def _last_of(plain: str) -> str:
    lines = [one for one in plain.split("\n") if one.strip()]
    return "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARS:]


def _of_kind(kind: str | None) -> tuple[str, ...]:
    """Of the backend: what an API answers is an error more often than what an agent prints."""
    if kind is None:
        return ()
    return (f"kind={kind.removesuffix('-cli')}", f"api={kind.endswith('-http')}")


def buckets_of(part: str, names: Iterable[str]) -> set[int]:
    encoded = (name.encode("utf-8", "replace") for name in names)
    return set(map(_MASK.__and__, map(crc32, encoded, repeat(_BEGINS[part]))))


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


def _normalised(text: str) -> str:
    """Lower case, without the values of numbers other than those that may be a status."""
    text = text.replace("’", "'").lower()
    text = _NUMBER.sub(lambda found: _DIGIT.sub("0", found[0]), text)
    return _RULERS.sub(r"\1\1\1\1", _BLANKS.sub(" ", text))


_WORD = re.compile(
    r"[a-z][a-z']{0,30}|\d{1,3}|[\u00e0-\u024f\u0400-\u04ff]{1,30}"
    r"|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
)


def _grams(text: str) -> Iterator[str]:
    flat = f"\n{text}\n"
    for size in _SIZES:
        yield from (flat[at : at + size] for at in range(len(flat) - size + 1))


def _words(text: str) -> Iterator[str]:
    words = _WORD.findall(text)
    yield from (f"w {word}" for word in words)
    yield from (f"w {one} {two}" for one, two in pairwise(words))


def _hashed_grams(part: str, text: str) -> set[int]:
    """
    The buckets of `_grams` and `_words`, many times faster than by the names.

    The checksum of an n-gram is that of the one before it, carried on by one character.
    """
    characters = [one.encode("utf-8", "replace") for one in f"\n{text}\n"]
    sums: list[int] = [_BEGINS[part]] * len(characters)
    found = buckets_of(part, _words(text))
    for size in range(1, max(_SIZES) + 1):
        sums = list(map(crc32, characters[size - 1 :], sums))
        if size in _SIZES:
            found.update(map(_MASK.__and__, sums))
    return found


# --- the shape ---------------------------------------------------------------------------------

_LEVEL = re.compile(
    r"\b(?:error|fatal|failed|failure|exception|warn(?:ing)?|info|debug|panic|traceback|critical"
    r"|denied|unable|cannot|invalid)\b",
    re.I,
)
_CODE = re.compile(
    r"\s*(?:def|class|import|from|return|if|for|const|let|var|func|fn|pub|async|export|try|except"
    r"|raise|throw|case)\b"
)
_CODE_INSIDE = re.compile(r"=>|\(\)|==|!=|\+=")
_FRAME = re.compile(r'\s*at .*\d|\s*File "')
_PROMPT = re.compile(r"\s*(?:[\w@~:/.-]{1,60})?[$%❯›>] \S")
_BULLET = re.compile(r"\s*(?:[-*•] |\d+[.)] )")
_CHANGED = re.compile(r"\s*\d*\s*[+-](?!-)")
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
    ("level", _LEVEL.search),
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
_AGENT = re.compile(rf"{_AGENTS}\b", re.I)
_HAS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("agent", re.compile(rf"(?<![a-z]){_AGENTS}(?![a-z])", re.I)),
    ("agent-code", re.compile(rf"(?:[\\/@_.-]|bunfs.{{0,20}}){_AGENTS}[\w-]{{0,20}}[\\/]", re.I)),
    ("agent-run", re.compile(rf"^.{{0,80}}[$%>❯#] ?(?:npx \S* ?)?{_AGENTS}\b", re.I | re.M)),
    ("agent-says", re.compile(rf"^\W{{0,3}}{_AGENTS}\W{{0,3}} ?[:>]", re.I | re.M)),
    ("provider", re.compile(rf"(?<![a-z]){_PROVIDERS}", re.I)),
    ("tokens", re.compile(r"\btokens?\b|\bmodels?\b|模型|モデル|모델|модел", re.I)),
    (
        "failed",
        re.compile(
            r"fehler|erreur|erro[r]?\b|errore|ошибк|错误|錯誤|エラー|오류|失败|失敗|실패|خطأ|hata|błąd"
            r"|falha|échou|échec|fall[oó]|异常|無法|无法|konnte nicht|impossible de|não foi poss",
            re.I,
        ),
    ),
    ("limit", re.compile(r"limit|quota|límite|lim[ií]te|лимит|额度|限制|上限|한도|الحد", re.I)),
    ("fence", re.compile(r"```")),
    ("source-file", re.compile(r"\.(?:py|ts|js|go|rs|md|java)\b")),
    ("source-line", re.compile(r"\.(?:py|ts|js|go|rs|java|md):\d")),
    ("I", re.compile(r"\b(?:I|I'll|I've|Let me)\b")),
    ("you", re.compile(r"\byou(?:r|'ve|'re)?\b", re.I)),
    ("url", re.compile(r"https?://")),
    ("reset", re.compile(r"reset|try again|retry", re.I)),
    ("test", re.compile(r"\b(?:test|assert|mock|expect)", re.I)),
    ("tool", _TOOL),
)


def shape_of(text: str, http_status: int | None) -> list[str]:
    """`name=value` for every property of the lines; values are steps, not amounts."""
    lines = [line for line in text.split("\n") if line.strip()]
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
    found += [f"has-{name}={pattern.search(text) is not None}" for name, pattern in _HAS]
    found.append(f"has-agent-last={_AGENT.search(lines[-1] if lines else '') is not None}")
    found += _shape_of_line("first", lines[0] if lines else "")
    found += _shape_of_line("last", lines[-1] if lines else "")
    return found


def _shape_of_line(name: str, line: str) -> list[str]:
    bare = line.strip()
    first, last = bare[:1], bare[-1:]
    levels = ",".join(sorted({word.lower() for word in _LEVEL.findall(bare)})[:2])
    return [
        f"{name}-begins={'a' if first.isalnum() else first}",
        f"{name}-ends={'a' if last.isalnum() else last}",
        f"{name}-case={_case(first)}",
        f"{name}-levels={levels}",
        f"{name}-chars={_step(len(bare), (20, 40, 80, 120, 200, 400))}",
        f"{name}-indent={min(4, len(line) - len(line.lstrip()))}",
    ]


def _case(first: str) -> str:
    if first.isupper():
        return "upper"
    return "lower" if first.islower() else "digit" if first.isdigit() else "other"


def _step(amount: float, edges: tuple[float, ...]) -> int:
    return next((at for at, edge in enumerate(edges) if amount <= edge), len(edges))
