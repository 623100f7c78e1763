"""
Places of a user that the environment may move: `${CODEX_HOME:-~/.codex}/auth.json`.

What stands behind `:-` may be such a place itself.
"""

import os
import re
from collections.abc import Iterable, Mapping

_MOVED = re.compile(r"\$\{(\w+):-((?:[^{}]|\$\{[^{}]*\})*)\}")


def expand(place: str, environ: Mapping[str, str], *, home: str) -> str | None:
    """
    The absolute path of a place, for a program with this environment. A `/` at its end stays.

    Args:
        home: Where `environ` has no `HOME`.

    Returns:
        None where it is no absolute path.
    """
    while (moved := _MOVED.match(place)) is not None:
        given = environ.get(moved[1], "")
        place = (given if os.path.isabs(given) else moved[2]) + place[moved.end() :]
    if place == "~" or place.startswith("~/"):
        own = environ.get("HOME", "")
        place = (own if os.path.isabs(own) else home) + place[1:]
    return place if os.path.isabs(place) and "\0" not in place else None


def variables_in(place: str) -> tuple[str, ...]:
    """The variables that may move a place."""
    return tuple(re.findall(r"\$\{(\w+):-", place))


def places(given: Iterable[str], environ: Mapping[str, str], *, home: str) -> tuple[str, ...]:
    """The absolute paths of several, each once; without those that are none."""
    found = (expand(place, environ, home=home) for place in given)
    return tuple(dict.fromkeys(path for path in found if path is not None))
