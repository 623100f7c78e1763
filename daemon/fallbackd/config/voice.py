"""
`voice-platform-health.json`: which backends voice agents hold for broken.

Two shapes are in use for one entry; both are read, and what is written has the keys of both:

    {"codex": {"marked_broken_at": 1.0, "reason": "…", "ttl_seconds": 600}}
    {"codex": {"reason": "…", "marked_at": 1.0, "expires_at": 601.0, "ttl_seconds": 600}}
"""

import json
import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from fallbackd.config.fields import Problem, join, problem, show
from fallbackd_conversations.redact import redact

MAX_REASON_CHARS = 280
DEFAULT_TTL_S = 600.0
FOR_EVER_S = 365 * 86_400.0
"""Written for a mark without an end: readers of the file expect a number."""
_OURS = "fallbackd"


class VoiceMark(Struct, frozen=True, kw_only=True):
    """One unhealthy backend."""

    backend: str
    words: str
    since_at: float
    ttl_s: float | None
    """Seconds from `since_at`; None: no end."""


class VoiceHealth(Struct, frozen=True, kw_only=True):
    marks: tuple[VoiceMark, ...] = ()
    ours: frozenset[str] = frozenset()
    """Backends whose entry we have written."""
    warnings: tuple[Problem, ...] = ()
    is_valid: bool = True
    """False: nothing can be read, as while another program writes the file."""


def read_voice(text: str, *, path: str, now: float) -> VoiceHealth:
    """
    Read the marks that have not expired. Garbage is a warning, its neighbours live.

    Entries that we have written ourselves are skipped: they are no news.
    """
    try:
        raw = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        why = problem(path, f"is not valid JSON: {error}")
        return VoiceHealth(warnings=(why,), is_valid=False)
    if raw is None:
        return VoiceHealth(is_valid=False)
    if not isinstance(raw, Mapping):
        why = problem(path, f"holds {show(raw)}, not a table of backends.")
        return VoiceHealth(warnings=(why,), is_valid=False)
    marks: list[VoiceMark] = []
    ours: set[str] = set()
    warnings: list[Problem] = []
    for backend, entry in raw.items():
        if not isinstance(entry, Mapping):
            warnings.append(problem(join(path, backend), f"{show(entry)} is not a table."))
            continue
        if entry.get("source") == _OURS:
            ours.add(backend)
            continue
        mark = _mark(backend, entry, now=now)
        if mark is None:
            warnings.append(problem(join(path, backend), "does not say when it was marked."))
        elif mark.ttl_s is not None and mark.since_at + mark.ttl_s > now:
            marks.append(mark)
    return VoiceHealth(marks=tuple(marks), ours=frozenset(ours), warnings=tuple(warnings))


def _mark(backend: str, entry: Mapping[str, object], *, now: float) -> VoiceMark | None:
    since_at = _number(entry.get("marked_broken_at"))
    if since_at is None:
        since_at = _number(entry.get("marked_at"))
    ttl_s = _number(entry.get("ttl_seconds"))
    expires_at = _number(entry.get("expires_at"))
    if since_at is None:
        if expires_at is None:
            return None
        since_at = expires_at - (DEFAULT_TTL_S if ttl_s is None else ttl_s)
    if expires_at is not None:
        ttl_s = expires_at - since_at
    elif ttl_s is None:
        ttl_s = DEFAULT_TTL_S
    reason = entry.get("reason")
    words = reason if isinstance(reason, str) and reason else "marked by a voice agent"
    return VoiceMark(
        backend=_encodable(backend),
        words=redact(_encodable(words))[:MAX_REASON_CHARS],
        # A clock that was set back: the mark lasts at most its original length from now.
        since_at=min(since_at, now),
        ttl_s=ttl_s,
    )


def _encodable(text: str) -> str:
    """Drop the half characters that JSON can spell and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def render_voice(marks: Iterable[VoiceMark]) -> str:
    """The whole file for these marks, one entry each with the keys of both shapes."""
    entries = {}
    for mark in marks:
        ttl_s = FOR_EVER_S if mark.ttl_s is None else mark.ttl_s
        entries[mark.backend] = {
            "marked_broken_at": mark.since_at,
            "marked_at": mark.since_at,
            "expires_at": mark.since_at + ttl_s,
            "ttl_seconds": ttl_s,
            "reason": redact(mark.words)[:MAX_REASON_CHARS],
            "source": _OURS,
        }
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
