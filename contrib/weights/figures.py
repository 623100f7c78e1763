"""
Verdicts on messages that nothing was learned from: of other families, tools and languages.

In five rounds a fifth of the families (all that one source says of one error), a fifth of the tools
and two languages are held out together; machines are trained on the rest, and the product judges
what was held out, with its rules, its thresholds and its readers of times.

The parts are measured on the tools held out: the rules without a model, and what a person's
samples of one tool teach about its other messages.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from contrib.weights.fitting import BENIGN, ROUNDS
from contrib.weights.hashed_rows import Label, kind_of, label_of
from tests.benchmarks.actions import is_right_action
from tests.benchmarks.stated_times import is_reset

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.model import Model
from fallbackd.classify.weighing import Lesson, can_learn, coarse, learn
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

LANGUAGES = (("it", "pl"), ("tr", "ko"), ("de", "ja"), ("vi", "ru"), ("ar", "fr"))
"""Held out by round; the others are never held out as a whole."""
TOO_LARGE = frozenset({"claude", "codex", "generic"})
"""Half of all messages: without them little is left to learn from."""
FEW = 8
Item = dict[str, Any]


def place_of(label: Label, number: int) -> str | None:
    """Why a message is held out in this round; None: it is learned from."""
    if label.lang in LANGUAGES[number]:
        return "language"
    if label.tool not in TOO_LARGE and _share(f"tool {label.tool}") == number:
        return "tool"
    return "family" if _share(f"family {label.group}") == number else None


def _share(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % ROUNDS


def read_items(paths: Iterable[Path]) -> list[Item]:
    return [json.loads(line) for path in paths for line in path.open(encoding="utf-8")]


class Tally:
    """Counts by set: everything, why it was held out, its language."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, item: Item, names: Iterable[str], judge: Callable[..., Failure | None]) -> None:
        found = count(item, judge)
        for name in names:
            self.counts[name].update(found)

    def shares(self) -> dict[str, dict[str, float | None]]:
        return {
            name: _shares(found)
            for name, found in sorted(self.counts.items(), key=lambda one: -one[1]["rows"])
            if found["rows"] >= FEW
        }


def count(item: Item, judge: Callable[..., Failure | None]) -> Counter[str]:
    """How one message is judged, with its exit status unknown and known."""
    label, also = item["reason"], item["also_ok"]
    failure = judge(exit_code=None)
    said = _word(failure)
    found = Counter(
        rows=1,
        strict=said == label,
        lenient=said in (label, *also),
        action=is_right_action(said, label, also),
    )
    if label == BENIGN:
        is_answer = (item["http_status"] or 0) < 400
        alarms_0 = is_answer and judge(exit_code=0) is not None
        found.update(benign=1, alarms=said != BENIGN, alarms_with_status_0=alarms_0)
    else:
        named = _word(judge(exit_code=1))
        right = is_right_action(named, label, also)
        found.update(failures=1, named=named in (label, *also), action_known=right)
    if item["reset_s"] is not None or item["reset_at"] is not None:
        stated = None if failure is None else failure.stated_reset_at
        found.update(stated=1, read=stated is not None and is_reset(item, stated, now=time.time()))
    return found


def _shares(found: Counter[str]) -> dict[str, float | None]:
    def share(part: str, whole: str) -> float | None:
        return round(found[part] / found[whole], 4) if found[whole] else None

    return {
        "rows": found["rows"],
        "failures": found["failures"],
        "strict": share("strict", "rows"),
        "lenient": share("lenient", "rows"),
        "action": share("action", "rows"),
        "false_alarms": share("alarms", "benign"),
        "alarms_with_status_0": found["alarms_with_status_0"],
        "named": share("named", "failures"),
        "action_known": share("action_known", "failures"),
        "resets": share("read", "stated"),
    }


def tally(items: Sequence[Item], number: int, model: Model | None, into: Tally) -> None:
    for item in items:
        place = place_of(label_of(item), number)
        if place is not None:
            names = ("all", place, f"language {item['lang']}")
            into.add(item, names, partial(judged, item, model))


def tally_parts(items: Sequence[Item], number: int, content: bytes, into: Tally) -> None:
    """Add the tools held out as the rules alone judge them, and as taught weights do."""
    by_tool: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if place_of(label := label_of(item), number) == "tool":
            by_tool[label.tool].append(item)
    with patch("fallbackd.classify.weighing.usable", return_value=None):
        for item in (one for some in by_tool.values() for one in some):
            into.add(item, ["tool, by rules alone"], partial(judged, item, None))
    model = Model(content)
    for some in by_tool.values():
        lessons = [one for item in some if _is_sample(item) and (one := _lesson(item, model))]
        with patch("fallbackd.classify.weighing.weights", return_value=content):
            taught = learn(lessons)
        for item in (one for one in some if not _is_sample(one)):
            into.add(item, ["tool, its other half"], partial(judged, item, model))
            into.add(item, ["tool, its other half, taught"], partial(judged, item, taught))


def _is_sample(item: Item) -> bool:
    return _share(f"sample {label_of(item).group}") % 2 == 0


def _lesson(item: Item, model: Model) -> Lesson | None:
    """A wrong verdict as a person would report it; None: the verdict is right."""
    right = item["reason"]
    if right == BENIGN or _word(judged(item, model, exit_code=1)) in (right, *item["also_ok"]):
        return None
    reason = Reason(right)
    return (
        Lesson(text=item["text"], reason=reason, kind=kind_of(item)) if can_learn(reason) else None
    )


def judged(item: Item, model: Model | None, *, exit_code: int | None) -> Failure | None:
    evidence = Evidence(
        text=item["text"],
        stream="unknown",
        http_status=item["http_status"],
        headers=item["headers"] or {},
        exit_code=exit_code,
    )
    kind = kind_of(item)
    return classify(evidence, SIGNATURES[kind], now=time.time(), kind=kind, model=model)


def _word(failure: Failure | None) -> str:
    return BENIGN if failure is None else coarse(failure.reason).value


def learned_from(labels: Sequence[Label], number: int) -> Any:
    return np.flatnonzero([place_of(label, number) is None for label in labels])
