"""The screen in front of the common rules: it rules out only what no rule finds."""

import json
from pathlib import Path

import pytest

from fallbackd.classify.common_rules import COMMON_RULES, searched
from fallbackd.classify.rules import Screen, compiled

MESSAGES = [
    one["text"]
    for path in sorted((Path(__file__).parent / "data/messages").glob("*.json"))
    for one in json.loads(path.read_bytes())["messages"]
]


def test_a_rule_finds_what_it_finds_without_the_screen() -> None:
    for line in {line for text in MESSAGES for line in text.split("\n")}:
        for rule in COMMON_RULES:
            if rule.pattern:
                alone = compiled(rule).search(line)
                screened = searched(rule, line)
                assert (alone is None) == (screened is None), (rule.id, line)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(?<!free )\bquota\b(?! left)", "quota"),
        (r"x(?!(?:a|[)b])\w)y", "xy"),
        (r"[^\w.]{2}\d\s", "--٣\u00a0"),
        (r"\w{3}\b", "süß"),
        (r"a\.b\(", "A.B("),
    ],
)
def test_the_screen_lets_pass_what_a_pattern_may_find(pattern: str, text: str) -> None:
    assert Screen([pattern]).may_find(text) == {pattern}
    assert Screen([pattern]).may_find("- -") == frozenset()
