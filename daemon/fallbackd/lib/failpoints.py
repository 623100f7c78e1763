"""
Instants at which a test may end the process, to see what is left.

    hit("store.commit.before")

does nothing: it is an empty function unless both the interpreter was started with
`-X fallbackd_failpoints` and `FALLBACKD_FAILPOINTS` is set. Neither comes about by chance: the
installed command has no `-X`, and an exported variable alone changes nothing.

    FALLBACKD_FAILPOINTS="store.commit.before=kill@3,answer.kept=kill"

ends the process at the third commit, or at the first answer that is kept. Names are those of the
source; a test holds that each is there once. Standard library only, cheap: the runner loads it.

`hit("…")` marks the durable steps; it is empty unless a test switches it on.
"""

import itertools
import os
import signal
import sys
from collections.abc import Iterator, Mapping

VARIABLE = "FALLBACKD_FAILPOINTS"
OPTION = "fallbackd_failpoints"
KILL = "kill"


def parse(text: str) -> dict[str, int]:
    """
    Read the point, and its hit, at which the process ends.

    Raises:
        ValueError: No `name=kill` or `name=kill@count`.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = part.partition("=")
        verb, _, count = action.partition("@")
        if not name or verb != KILL or not (count or "1").isdecimal():
            raise ValueError(f"{VARIABLE}: {part!r} is not NAME=kill or NAME=kill@COUNT")
        found[name] = int(count or "1")
    return found


class Killer:
    """Counts, and ends this very process without any tidying up."""

    def __init__(self, points: Mapping[str, int]) -> None:
        self._points = dict(points)
        self._counts: dict[str, Iterator[int]] = {name: itertools.count(1) for name in points}

    def __call__(self, name: str) -> None:
        count = self._counts.get(name)
        if count is not None and next(count) == self._points[name]:
            os.write(2, f"failpoint {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


def hit(name: str) -> None:
    """An instant that matters. Here: nothing."""


handed_on: tuple[tuple[str, ...], dict[str, str]] = ((), {})
"""Options of the interpreter and variables with which a process of ours has the same points."""

if OPTION in sys._xoptions and os.environ.get(VARIABLE):
    hit = Killer(parse(os.environ[VARIABLE]))
    handed_on = (("-X", OPTION), {VARIABLE: os.environ[VARIABLE]})
