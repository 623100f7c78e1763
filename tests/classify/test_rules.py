"""The screen in front of the common rules: it rules out only what no rule finds."""

import json
from pathlib import Path

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.common_rules import COMMON_RULES, fitting
from fallbackd.classify.rules import Rule, Screen, compiled

MESSAGES = [
    one["text"]
    for path in sorted((Path(__file__).parent / "data/messages").glob("*.json"))
    for one in json.loads(path.read_bytes())["messages"]
]


@pytest.mark.parametrize("rules", [COMMON_RULES, *filter(None, SIGNATURES.values())])
def test_no_rule_that_finds_something_is_screened_out(rules: tuple[Rule, ...]) -> None:
    for line in {line for text in MESSAGES for line in text.split("\n")}:
        possible = fitting(rules).among((line,))
        for rule in rules:
            if rule.pattern and compiled(rule).search(line):
                assert rule in possible, (rule.id, line)


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
