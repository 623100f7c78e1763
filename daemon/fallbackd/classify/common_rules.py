"""
Failure signatures that hold for every backend, most specific first.

Wording comes before status: a provider says `overloaded` in a 400 and `insufficient balance` in
a 429. The first block names causes that others are mistaken for; statuses alone come last.
"""

from fallbackd.classify.access_rules import ACCESS_RULES
from fallbackd.classify.fault_rules import FAULT_RULES
from fallbackd.classify.limit_rules import LIMIT_RULES
from fallbackd.classify.rules import Rule

COMMON_RULES: tuple[Rule, ...] = (*LIMIT_RULES, *ACCESS_RULES, *FAULT_RULES)

GENERAL_FAULTS = frozenset({"server-fault", "server-error"})
"""Rules whose wording says little: what else is said before or behind decides."""

GENERAL_THROTTLES = frozenset({"throttle", "http-429"})
"""Rules whose wording says nothing about a window: a stated time of hours makes it a plan's."""
