"""
Suggestions: the backend that suits a task, and how long it may take.

A backend's points are data of its profile: `base`, and one number for each word that a task may
be described with (`size:large`, `complexity:high`, `scope:code`, `needs:media`). Words that the
caller does not give are read from the goal (`GOAL_WORDS`). Unavailable backends are left out before
anything is added up.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field, structs

from fallbackd.core import meter as meters
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.records import Meter

BASE = 50
SIZE_S: dict[str, float] = {
    "tiny": 60.0,
    "small": 300.0,
    "medium": 900.0,
    "large": 3600.0,
    "xlarge": 7200.0,
}
COMPLEXITY_FACTOR: dict[str, float] = {"low": 0.6, "medium": 1.0, "high": 1.8, "extreme": 3.0}
MAX_ETA_S = 4 * 3600.0
CHARS_OF_TOKEN = 4
"""A rough average over prose and code; only compared with whole context sizes."""


GOAL_WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "size": {
        "tiny": ("tiny", "typo", "rename"),
        "xlarge": ("xlarge", "huge", "whole", "entire"),
        "large": ("large", "big", "multi-file", "multiple files", "many files", "several files"),
        "medium": ("medium",),
        "small": ("small", "quick", "little"),
    },
    "complexity": {
        "extreme": ("extreme",),
        "high": ("complex", "hard", "difficult", "tricky", "complicated"),
        "low": ("simple", "easy", "trivial", "typo"),
    },
    "scope": {
        "security": ("security", "secure", "vulnerab", "audit", "exploit", "pentest", "cve-"),
        "refactor": ("refactor", "restructur", "clean"),
        "research": ("research", "investigat", "compar"),
        "analysis": ("analy", "explain", "summar"),
        "test": ("test",),
        "build": ("build", "compil", "deploy"),
        "code": ("code", "implement", "fix", "bug", "debug", "add", "write", "typo", "rename"),
    },
    "needs": {
        "media": ("image", "picture", "photo", "screenshot", "audio", "video", "recording"),
        "context": ("huge", "million", "entire repo", "whole repo"),
        "reasoning": ("reason", "multi-file", "multiple files", "many files", "several files"),
    },
}
"""
Beginnings of words and phrases of a goal, by what they say of the task. Of each row the first
word that stands in the goal counts.
"""


class Task(Struct, frozen=True, kw_only=True):
    """
    Words as a person said them. Absent ones are read from the goal; unknown ones, and those of
    which the goal says nothing, count as small, medium and none.
    """

    goal: str = ""
    size: str | None = None
    complexity: str | None = None
    scope: str | None = None
    needs: str | None = None
    """`media`, `context` or `reasoning`, where the goal says so."""
    project_tokens: int = 0
    """Text of the project, estimated."""


class Cap(Struct, frozen=True, kw_only=True):
    used: int
    cap: int
    unit: str
    window_s: float = 3600.0
    is_enforced: bool


class Suggestion(Struct, frozen=True, kw_only=True):
    backend: BackendId | None = None
    reason: str
    eta_s: float | None = None
    estimate_s: float | None = None
    """The same before it was corrected by the times that were measured."""
    scores: Mapping[BackendId, int] = field(default_factory=dict)
    caps: Mapping[BackendId, Cap] = field(default_factory=dict)
    available: tuple[BackendId, ...] = ()
    was_fallback: bool = False
    """A better one by score was left out."""


def suggest(
    policy: Policy,
    task: Task,
    states: Mapping[BackendId, str],
    used: Mapping[BackendId, Meter],
    *,
    now: float,
    missing: Collection[BackendId] = (),
) -> Suggestion:
    """
    Args:
        states: Health of every configured backend, as one word. Absent: healthy.
        used: What each backend has been used for.
        missing: Backends that are not installed or set up; there is no failover from these.
    """
    task = described(task)
    offered = [one for one in policy.backends.values() if one.suggestible and one.enabled]
    caps = {
        one.id: found
        for one in offered
        if (found := cap_of(one, used.get(one.id), now=now)) is not None
    }
    left_out = _left_out(offered, task, states, caps)
    every_score = {one.id: score(one, task) for one in offered}
    scores = {name: points for name, points in every_score.items() if name not in left_out}
    if not scores:
        return Suggestion(reason=_nobody(left_out), caps=caps)
    best = max(scores, key=scores.__getitem__)  # of equal ones the first that was declared
    return Suggestion(
        backend=best,
        reason=_because(policy.backends[best], task, scores[best]),
        eta_s=eta_s(task, used.get(best)),
        estimate_s=eta_s(task),
        scores=scores,
        caps=caps,
        available=tuple(scores),
        was_fallback=any(
            points > scores[best] for name, points in every_score.items() if name not in missing
        ),
    )


def described(task: Task) -> Task:
    """The task with the words that the caller left out, as far as its goal has them."""
    goal = " ".join(task.goal.lower().split())
    return structs.replace(
        task,
        size=task.size or _said("size", goal),
        complexity=task.complexity or _said("complexity", goal),
        scope=task.scope or _said("scope", goal),
        needs=_said("needs", goal),
    )


def _said(what: str, goal: str) -> str | None:
    for word, beginnings in GOAL_WORDS[what].items():
        if any(re.search(rf"\b{re.escape(one)}", goal) for one in beginnings):
            return word
    return None


def score(backend: Backend, task: Task) -> int:
    points = backend.scores.get("base", BASE)
    return points + sum(backend.scores.get(word, 0) for word in _words(task))


def eta_s(task: Task, used: Meter | None = None) -> float:
    """Seconds, corrected by how long the backend's finished work took against its estimates."""
    size_s = SIZE_S[_known(task.size, SIZE_S, "small")]
    factor = COMPLEXITY_FACTOR[_known(task.complexity, COMPLEXITY_FACTOR, "medium")]
    return min(MAX_ETA_S, size_s * factor * meters.eta_factor(used))


def cap_of(backend: Backend, used: Meter | None, *, now: float) -> Cap | None:
    """The local budget of a backend: an enforced one, else the one that is only shown."""
    is_enforced = backend.hourly_cap is not None
    cap = backend.hourly_cap if backend.hourly_cap is not None else backend.shown_cap
    if cap is None:
        return None
    is_tokens = backend.cap_unit == "tokens"
    count = meters.tokens_in_hour if is_tokens else meters.attempts_in_hour
    return Cap(used=count(used, now=now), cap=cap, unit=backend.cap_unit, is_enforced=is_enforced)


def duration(seconds: float) -> str:
    """For people: the two largest units, zero units left out (`2h 3m`, `1h`, `0s`)."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next((at for at, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [f"{count}{unit}" for count, unit in parts[first : first + 2] if count]
    return " ".join(shown) or "0s"


def _known(word: str | None, table: Mapping[str, float], default: str) -> str:
    plain = (word or "").strip().lower()
    return plain if plain in table else default


def _words(task: Task) -> tuple[str, ...]:
    size = _known(task.size, SIZE_S, "small")
    complexity = _known(task.complexity, COMPLEXITY_FACTOR, "medium")
    scope = (task.scope or "").strip().lower()
    return (f"size:{size}", f"complexity:{complexity}", f"scope:{scope}", f"needs:{task.needs}")


def _why_not(backend: Backend, task: Task, state: str, cap: Cap | None) -> str | None:
    if state not in ("healthy", "cooldown"):
        return state
    if cap is not None and cap.is_enforced and cap.used >= cap.cap:
        return f"{cap.used} of {cap.cap} {cap.unit} an hour are used"
    if backend.context_tokens is not None and goal_tokens(task) > backend.context_tokens:
        return "the goal is larger than its context"
    return None


def goal_tokens(task: Task) -> int:
    return len(task.goal) // CHARS_OF_TOKEN


def _left_out(
    offered: Sequence[Backend],
    task: Task,
    states: Mapping[BackendId, str],
    caps: Mapping[BackendId, Cap],
) -> dict[BackendId, str]:
    """Return why backends are left out, by backend, the size of the project last."""
    left_out = {
        one.id: why
        for one in offered
        if (why := _why_not(one, task, states.get(one.id, "healthy"), caps.get(one.id)))
    }
    usable = [one for one in offered if one.id not in left_out]
    return left_out | _too_small(usable, task)


def _too_small(usable: Sequence[Backend], task: Task) -> dict[BackendId, str]:
    """
    Leave out those whose context the project does not fit, unless it fits none of them.

    An agent reads a project in parts: what fits nowhere goes to the largest context.
    """
    needed = goal_tokens(task) + task.project_tokens
    largest = max((_context(one) for one in usable), default=0.0)
    return {
        one.id: f"the project (about {task.project_tokens} tokens) is larger than its context"
        f" ({one.context_tokens} tokens)"
        for one in usable
        if _context(one) < min(needed, largest)
    }


def _context(backend: Backend) -> float:
    """Tokens; one that is not known holds anything."""
    return float("inf") if backend.context_tokens is None else backend.context_tokens


def _because(backend: Backend, task: Task, points: int) -> str:
    parts = [
        f"{word} {backend.scores[word]:+d}" for word in _words(task) if backend.scores.get(word)
    ]
    added = f" ({', '.join(parts)})" if parts else ""
    return f"{backend.name or backend.id} suits best with {points} points{added}."


def _nobody(left_out: Mapping[BackendId, str]) -> str:
    if not left_out:
        return "No backend that can be suggested is configured."
    each = ", ".join(f"{name}: {why}" for name, why in left_out.items())
    return f"No backend is available now ({each})."
