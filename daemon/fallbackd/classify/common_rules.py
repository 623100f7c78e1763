"""
Failure signatures that hold for every backend, most specific first.

Wording comes before status: a provider says `overloaded` in a 400 and `insufficient balance` in
a 429. The first block names causes that others are mistaken for; statuses alone come last.
"""

from functools import lru_cache

from fallbackd.classify.access_rules import ACCESS_RULES
from fallbackd.classify.fault_rules import FAULT_RULES
from fallbackd.classify.limit_rules import LIMIT_RULES
from fallbackd.classify.rules import Found, Rule, Screen, compiled

COMMON_RULES: tuple[Rule, ...] = (*LIMIT_RULES, *ACCESS_RULES, *FAULT_RULES)

GENERAL_FAULTS = frozenset({"server-fault", "server-error"})
"""Rules whose wording says little: what else is said before or behind decides."""

GENERAL_THROTTLES = frozenset({"throttle", "http-429"})
"""Rules whose wording says nothing about a window: a stated time of hours makes it a plan's."""


def searched(rule: Rule, line: str) -> Found | None:
    """What the pattern of this rule finds. Of the common ones most are ruled out by one pass."""
    if rule.pattern in _patterns() and rule.pattern not in _possible(line):
        return None
    return compiled(rule).search(line)


@lru_cache(maxsize=1)
def _patterns() -> frozenset[str]:
    return frozenset(rule.pattern for rule in COMMON_RULES if rule.pattern)


@lru_cache(maxsize=1)
def screen() -> Screen:
    return Screen(sorted(_patterns()))


@lru_cache(maxsize=256)
def _possible(line: str) -> frozenset[str]:
    return screen().may_find(line)
