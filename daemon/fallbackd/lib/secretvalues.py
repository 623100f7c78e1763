"""Replaces what an environment holds as secrets, by value: no pattern knows every form of a key."""

import re
from collections.abc import Callable, Mapping

_NAMES = re.compile(r"key|token|secret|passw|credential|authorization", re.I)
MIN_CHARS = 8
"""Shorter values are words that occur by themselves."""
SHOWN = "[secret]"


def concealer(environ: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces the values of variables whose names speak of secrets."""
    values = {
        value
        for name, value in environ.items()
        # A path names where a secret is, and is none.
        if _NAMES.search(name) and len(value) >= MIN_CHARS and not value.startswith("/")
    }
    if not values:
        return lambda text: text
    longest_first = sorted(values, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(value) for value in longest_first))
    return lambda text: pattern.sub(SHOWN, text)
