"""By which processes a process was started."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fallbackd.lib.procenv import ancestors

READY = "import sys; print('ready', flush=True); sys.stdin.read()"
STARTS = (
    "import os, subprocess, sys;"
    "one = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={}, stdin=0,"
    " stdout=subprocess.PIPE);"
    "one.stdout.readline(); print(one.pid, flush=True); one.wait()"
)


@contextmanager
def process(code: str, *arguments: str, env: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """(its pid, its first line) of a Python program that ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as made:
        assert made.stdin is not None
        assert made.stdout is not None
        try:
            yield made.pid, made.stdout.readline().strip()
        finally:
            made.stdin.close()


def test_those_above_a_process_are_told_from_itself_upwards() -> None:
    with process(STARTS, READY, env={}) as (pid, line):
        assert list(ancestors(int(line))) == [int(line), pid]


def test_the_search_ends_at_this_process() -> None:
    with process(READY, env={}) as (pid, _):
        assert list(ancestors(pid)) == [pid]
    assert list(ancestors(os.getpid())) == []


def test_a_process_that_is_gone_or_none_has_none_above_it() -> None:
    with process(READY, env={}) as (pid, _):
        pass
    for gone in (pid, 0, -1, 1):
        assert list(ancestors(gone))[1:] == []
