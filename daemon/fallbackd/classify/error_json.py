"""JSON that says of itself that it is an error, in whatever wrapping, to plain statements."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.classify.error_lines import without_frames
from fallbackd.classify.languages import in_english
from fallbackd.classify.reset_fields import names_spent_window
from fallbackd.lib import foreign_json

MAX_DEPTH = 8
MAX_JSON_LINE_CHARS = 65_536
MAX_SAID_CHARS = 1_000
"""Patterns are searched in the beginning and in the end of a message this long."""
MAX_STATEMENTS = 50
"""Bound for a log of errors, of which the last ones count: the program died of one of these."""
MAX_LINES = 200
"""Bound for a log, of which the last lines are read."""
MAX_PARTS = 20
"""Lines of one message, and words, that patterns are searched in: half from each end."""


class Said(Struct, frozen=True, dict=True):
    """One statement. `words` are machine-readable and in lower case; `value` is the JSON."""

    text: str
    words: tuple[str, ...] = ()
    status: int | None = None
    value: Any = None

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """
        Texts that patterns are searched in: the message, whole and by line, then the words, as they
        are and as words of a sentence (`token_quota_reached`).
        """
        text = without_frames(self.text.replace("’", "'"))
        if len(text) > MAX_SAID_CHARS:
            text = f"{text[:MAX_SAID_CHARS]}\n{text[-MAX_SAID_CHARS:]}"
        parts = [p for p in text.split("\n") if p.strip()]
        whole = [" ".join(text.split())] if len(parts) > 1 else []
        said = [" ".join(english)] if (english := in_english(text)) else []
        spoken = [w.translate(_APART) for w in self.words if not w.isalnum()]
        return (*_both_ends(parts), *whole, *said, *_both_ends(self.words), *_both_ends(spoken))


_APART = str.maketrans("_-.", "   ")


def _both_ends(parts: Sequence[str]) -> Sequence[str]:
    half = MAX_PARTS // 2
    return parts if len(parts) <= MAX_PARTS else (*parts[:half], *parts[-half:])


_MESSAGE_KEYS = (
    "message",
    "detail",
    "error_description",
    "msg",
    "error_message",
    "reason",
    "title",
    "result",
)
_WORD_KEYS = (
    "code",
    "type",
    "status",
    "name",
    "reason",
    "error_code",
    "__type",
    "quotaId",
    "error",
    "kind",
    "exit",
)
_STATUS_KEYS = (
    "statusCode",
    "status_code",
    "status",
    "code",
    "api_error_status",
    "error_status",
    "http_status",
)
_INNER_KEYS = (
    "error", "data", "body", "cause", "lastError", "responseBody", "response", "details", "errors",
    "metadata", "raw", "violations", "info", "error_details",
)  # fmt: skip


def read_body(value: Any, *, status: int | None = None) -> list[Said]:
    """An HTTP body, or an error value that a parser has cut out: an error as it stands."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        parsed = _parse(value)
        if parsed is None:
            return _of_text(value, status)
        value = parsed
    if isinstance(value, list):
        return [s for item in value[:20] for s in read_body(item, status=status)]
    return _of_object(value, status) if isinstance(value, dict) else []


def _of_text(value: str, status: int | None) -> list[Said]:
    if status is not None and status < 400 and not is_page(value):
        return read_lines(value)  # a stream of events, or an answer in words
    return [Said(text=_plain(value), status=status)] if value.strip() else []


def _of_object(value: dict[str, Any], status: int | None) -> list[Said]:
    found = list(_event(value))
    if found or (status is not None and status < 400 and not is_error(value)):
        return [Said(s.text, s.words, s.status or status, s.value) for s in found]
    return [_say(value, status=status)]


def read_lines(text: str, *, is_body: bool = False) -> list[Said]:
    """
    Lines of JSON, or one JSON value over several lines; prose is passed over. Of many statements
    the last `MAX_STATEMENTS` count.
    """
    if "{" not in text:
        return []
    found = _last_said(text)
    if not found:
        whole = _parse(text.strip())
        found.extend(_errors_in(whole))
    if not found and is_body:
        prefix = text.split("{", 1)[0]
        found.extend(_say(piece, prefix=prefix) for piece in _embedded(text))
    return found


def _last_said(text: str) -> list[Said]:
    found: list[Said] = []
    for line in reversed(text[-MAX_JSON_LINE_CHARS:].rsplit("\n", MAX_LINES)):
        line = line.strip().removeprefix("data:").lstrip()
        if line[:1] not in "{[" or len(line) > MAX_JSON_LINE_CHARS or len(line) < 2:
            continue
        value = _parse(line)
        found.extend(reversed(list(_errors_in(value))))
        if len(found) >= MAX_STATEMENTS or _ends_well(value):
            break  # what it said of its tries before a good end is over
    return found[MAX_STATEMENTS - 1 :: -1]


def _ends_well(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    match value.get("type"):
        case "result":
            return not value.get("is_error") and value.get("status") in (None, "success")
        case "turn.completed" | "response.completed":
            return True
        case _:
            return False


def _errors_in(value: Any) -> Iterator[Said]:
    if isinstance(value, list):
        for item in value[:50]:
            yield from _errors_in(item)
    elif isinstance(value, dict):
        yield from _event(value)


def _event(value: dict[str, Any]) -> Iterator[Said]:
    """Statements of one event or body; none for an event that only *contains* the word error."""
    kind = value.get("type")
    properties = value.get("properties")
    if isinstance(properties, dict):
        yield from _server_event(properties)
    elif isinstance(blocked := value.get("promptFeedback"), dict) and blocked.get("blockReason"):
        yield Said(text=str(blocked["blockReason"]), words=("content_filter",), value=value)
    elif value.get("retryMessage"):
        yield Said(text=str(value["retryMessage"]), value=value)
    elif kind == "rate_limit_event":
        info = value.get("rate_limit_info")
        if isinstance(info, dict) and names_spent_window(info):
            yield Said(text="usage limit reached", words=("rejected",), value=info)
    elif (kind == "system" and value.get("subtype") == "api_retry") or is_error(value):
        yield _say(value)


def _server_event(properties: dict[str, Any]) -> Iterator[Said]:
    error, status = properties.get("error"), properties.get("status")
    if isinstance(error, dict):
        yield _say(error)
    elif isinstance(status, dict) and status.get("type") == "retry":
        yield Said(text=str(status.get("message") or ""), value={"status": "retry"})


_ERROR_NAME = re.compile(r"\w(?:Error|Exception)$")
_ERROR_WORD = re.compile(
    r"error|exceeded|invalid|denied|unauthori|overloaded|quota|not_found|failed|exhausted"
    r"|exception",
    re.I,
)


def is_error(value: dict[str, Any]) -> bool:
    """Check whether an object says of itself that it is an error."""
    match value.get("type"):
        case "tool_use" | "tool_result" | "user":
            return False
        case "item.completed" | "item.started" | "item.updated":
            return False
        case "assistant":
            return isinstance(value.get("error"), str)
        case "error" | "turn.failed" | "response.failed":
            return True
        case str(kind) if kind.endswith((".error", "_error", ".failed")):
            return True
        case kind:
            return value.get("is_error") is True or _has_error(value, kind)


def _has_error(value: dict[str, Any], kind: Any) -> bool:
    error = value.get("error")
    if isinstance(error, dict) and error:
        return True
    if isinstance(value.get("data"), dict) and _ERROR_NAME.search(str(value.get("name"))):
        return True
    if isinstance(error, str) and error:
        return kind is None or kind == "result"
    return isinstance(value.get("message"), str) and (
        _status_of(value) is not None
        or bool(_ERROR_WORD.search(str(kind or value.get("code") or "")))
    )


def _say(value: Any, *, status: int | None = None, prefix: str = "") -> Said:
    found = _Gathered([prefix.strip()])
    found.add(value)
    return Said(
        text="\n".join(dict.fromkeys(filter(None, found.messages))),
        words=tuple(dict.fromkeys(w.lower() for w in found.words)),
        status=found.statuses[0] if found.statuses else status,
        value=value,
    )


class _Gathered:
    """Statements of a value, in their order."""

    def __init__(self, messages: list[str]) -> None:
        self.messages = messages
        self.words: list[str] = []
        self.statuses: list[int] = []

    def add(self, value: Any, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            return
        if isinstance(value, list):
            for item in value[:20]:
                self.add(item, depth + 1)
        elif isinstance(value, str):
            self._add_text(value, depth)
        elif isinstance(value, dict):
            status = _status_of(value)
            if status is not None:
                self.statuses.append(status)
            self._add_words(value)
            self._add_messages(value, depth)
            self._add_inner(value, depth)

    def _add_words(self, value: dict[str, Any]) -> None:
        for key in _WORD_KEYS:
            word = value.get(key)
            if isinstance(word, str) and _WORD.fullmatch(word):
                self.words.append(word.rpartition("#")[2])

    def _add_messages(self, value: dict[str, Any], depth: int) -> None:
        for key in _MESSAGE_KEYS:
            message = value.get(key)
            if isinstance(message, str):
                self._add_text(message, depth)
            elif isinstance(message, dict) and key in ("message", "reason"):
                self.add(message, depth + 1)
        content = value.get("content") if value.get("type") == "message" else None
        if isinstance(content, list):
            texts = (part.get("text") for part in content[:10] if isinstance(part, dict))
            self.messages.extend(text for text in texts if isinstance(text, str))

    def _add_inner(self, value: dict[str, Any], depth: int) -> None:
        for key in _INNER_KEYS:
            inner = value.get(key)
            if isinstance(inner, dict | list):
                self.add(inner, depth + 1)
            elif isinstance(inner, str) and inner and key not in _MESSAGE_KEYS:
                self._add_text(inner, depth)

    def _add_text(self, text: str, depth: int) -> None:
        """A message may be JSON again, or hold some."""
        parsed = _parse(text)
        if isinstance(parsed, dict | list):
            self.add(parsed, depth + 1)
            return
        self.messages.append(_plain(text))
        for piece in _embedded(text):
            self.add(piece, depth + 1)


def is_page(text: str) -> bool:
    """An HTML page stands where an answer should: a portal or a gateway speaks."""
    return _PAGE.match(text) is not None


_PAGE = re.compile(r"\s{0,20}<(?:!doctype html|html)\b", re.I)
_WORD = re.compile(r"[\w.:#/-]{2,120}")


def _embedded(text: str) -> Iterator[dict[str, Any]]:
    """Objects inside prose: `400 {"type":"error",…}`, `Error code: 402 - {'error': {…}}`."""
    start = text.find("{")
    if start < 0:
        return
    end = text.rfind("}")
    if end <= start or end - start > MAX_JSON_LINE_CHARS:
        return
    piece = text[start : end + 1]
    parsed = _parse(piece)
    if parsed is None and "'" in piece:
        parsed = _parse(_from_python(piece))
    if parsed is None and '\\"' in piece:
        parsed = _parse(piece.replace('\\"', '"'))
    if isinstance(parsed, dict):
        yield parsed


def read_embedded(text: str) -> Said | None:
    """Statements of an object inside of prose; None where there is none that can be read."""
    for piece in _embedded(text):
        return _say(piece)
    return None


def _from_python(text: str) -> str:
    """The repr of a dict, near enough: single quotes to double ones, names of constants."""
    text = re.sub(r"(?<=[{\[,:\s])'((?:[^'\"\\]|\\.)*)'(?=\s*[:,}\]])", r'"\1"', text)
    return re.sub(
        r"\b(None|True|False)\b", lambda m: {"None": "null"}.get(m[1], m[1].lower()), text
    )


def _status_of(value: dict[str, Any]) -> int | None:
    for key in _STATUS_KEYS:
        status = value.get(key)
        if isinstance(status, str) and re.fullmatch(r"[45]\d\d", status):
            status = int(status)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
            return status
    return None


_TAGS = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^<>]{0,2000}>", re.S | re.I)


def _plain(text: str) -> str:
    """Error pages of gateways are HTML: their words count, their tags do not."""
    text = text[:MAX_JSON_LINE_CHARS]
    if re.search(r"<(?:!doctype|html|head|body|h1|center|title)\b", text[:2000], re.I):
        text = " ".join(_TAGS.sub(" ", text).split())
    return text.strip()


def is_json(text: str) -> bool:
    """The text is one JSON value, or begins with a line that is one."""
    return _parse(text) is not None or _parse(text.strip().split("\n", 1)[0]) is not None


def _parse(text: str) -> Any:
    text = text.strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        return foreign_json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
