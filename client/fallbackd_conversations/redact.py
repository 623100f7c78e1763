"""Redaction of a program's output: no secrets, control characters or bulk."""

import re
from collections.abc import Sequence

MAX_EVIDENCE_CHARS = 400

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e0fff]"
)

_NAMED = (
    r"(?:api|access|secret|private|auth|client|refresh|id|session|bearer)?[-_ ]?"
    r"(?:key|token|secret|passw(?:or)?d|credential|authorization)s?"
)

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)", re.S), "[key]"),
    # A JSON web token, with or without its signature.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), "[token]"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=*-]{6,}", re.I), r"\1 [token]"),
    # Keys that vendors mark by a prefix. Already masked ones (`sk-abc***xyz`) are taken too.
    (
        re.compile(r"\b(?:sk|pk|rk|ak|gsk|xai|key|r8|hf|nvapi|csk|pplx|fw|tgp)[-_][\w*.-]{6,}"),
        "[key]",
    ),
    (re.compile(r"\bAIza[\w*-]{10,}"), "[key]"),
    (re.compile(r"\bya29\.[\w-]{6,}"), "[key]"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), "[key]"),
    (re.compile(r"\b(?:gh[pousr]|github_pat|glpat|xox[abprs])[-_][\w-]{10,}"), "[key]"),
    (re.compile(r"(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"), "[login]"),
    (
        re.compile(
            rf"(\b{_NAMED}[\"']?\s*[=:]\s*[\"']?)(?!\[)(?=[^\s\"',;&]*\d)[^\s\"',;&]{{6,}}", re.I
        ),
        r"\1[redacted]",
    ),
    (
        re.compile(r"([?&](?:key|token|api_key|access_token|code)=)[^&\s\"']+", re.I),
        r"\1[redacted]",
    ),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}\b"), "[email]"),
    # A commit of git has the shape of some keys: it stays where nothing beside it tells of a key.
    (
        re.compile(rf"((?<![a-z]){_NAMED}(?![a-z])[^\n]{{0,24}}?)\b[0-9a-f]{{40}}\b", re.I),
        r"\1[hex]",
    ),
    (re.compile(r"\b[0-9a-f]{40}(?=@)", re.I), "[hex]"),
    (re.compile(r"\b(?!(?-i:[0-9a-f]{40})\b)[0-9a-f]{32,}\b", re.I), "[hex]"),
    # Long runs of base64 that mix cases and digits: no word of a language looks like that.
    (
        re.compile(
            r"(?<![\w/.-])(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])(?=[\w+/-]*\d)[\w+-]{40,}={0,2}"
        ),
        "[token]",
    ),
)


_MARKS = re.compile(r"[=:@\s_A-Z-]")
_RUN_CHARS = 32
_RUN = re.compile(rf"(?<!\w)\w{{{_RUN_CHARS}}}")


_KEYS: tuple[re.Pattern[bytes], ...] = (
    re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)", re.S),
    re.compile(rb"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    re.compile(rb"(?<=\b(?:bearer|Bearer|BEARER)\s)(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,}"),
    re.compile(rb"\b(?:sk|rk|gsk|xai|r8|hf|nvapi|csk|pplx|fw|tgp)[-_](?=[\w.-]*\d)[\w.-]{14,}"),
    re.compile(rb"\bAIza[\w-]{20,}|\bya29\.[\w-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(rb"\b(?:gh[pousr]|github_pat|glpat|xox[abprs])[-_](?=[\w-]*\d)[\w-]{16,}"),
    re.compile(rb"(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"),
)
"""What can be nothing but a key: other shapes occur in the code that an agent prints."""


def mask_keys(data: bytes) -> bytes:
    """Asterisks in the place of each key, as many as it has bytes."""
    for pattern in _KEYS:
        data = pattern.sub(lambda found: b"*" * len(found[0]), data)
    return data


def strip_escapes(text: str) -> str:
    """Remove terminal escape sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


_STEERING = dict.fromkeys(n for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t")
"""For `str.translate`: all of C0 and C1, DEL included, but for line feeds and tabs."""


def strip_controls(text: str) -> str:
    """Remove escape sequences and whatever else would steer a terminal."""
    return strip_escapes(text).translate(_STEERING)


def redact(text: str) -> str:
    """Replace whatever looks like a secret. For logs and evidence alike; idempotent."""
    if not _is_telling(text):
        return text
    for pattern, put in _SECRETS:
        text = pattern.sub(put, text)
    return text


def _is_telling(text: str) -> bool:
    """Return whether a word holds what each secret holds at least: most words of a log do not."""
    has_run = len(text) >= _RUN_CHARS and _RUN.search(text) is not None
    return has_run or _MARKS.search(text) is not None or "ya29" in text


def redact_command(words: Sequence[str]) -> list[str]:
    """Redact each word of a command, also where only the option before it tells."""
    found: list[str] = []
    option = ""
    for word in words:
        is_number = word.rpartition("=")[2].isdecimal()  # `--max-tokens=200000`
        shown = word if is_number else redact(word)
        if (
            not is_number
            and option
            and shown == word
            and redact(f"{option}={word}") != f"{option}={word}"
        ):
            shown = "[redacted]"
        found.append(shown)
        option = word if word.startswith("-") and "=" not in word else ""
    return found


def excerpt(text: str, *, max_chars: int = MAX_EVIDENCE_CHARS) -> str:
    """One printable line of at most `max_chars` characters, redacted."""
    # Secrets are looked for before the cut, which could leave half a key that no pattern knows.
    near = text[: max_chars * 4]
    if len(near) < len(text):
        near = _CUT_WORD.sub("", near)
    line = _in_one_line(near)
    if len(line) < 2 * max_chars:
        line = _in_one_line(text[: max_chars * 20])
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


_BLANKS = re.compile(r"[ \t]{2,}")
_CUT_WORD = re.compile(r"(?<!\S)\S+\Z")


def _in_one_line(text: str) -> str:
    plain = _CONTROLS.sub(" ", _BLANKS.sub(" ", strip_escapes(text)))
    return " ".join(redact(plain).split())
