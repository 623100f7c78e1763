"""What the environment of a process, or of those that started it, says."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fallbackd.lib.procenv import find_variable

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


def test_the_first_of_the_names_that_the_process_itself_has() -> None:
    with process(READY, env={"INNER": "d1.2", "OUTER": "d1", "EMPTY": ""}) as (pid, _):
        assert find_variable(pid, "INNER", "OUTER") == "d1.2"
        assert find_variable(pid, "EMPTY", "OUTER") == "d1"


def test_a_process_with_an_empty_environment_is_known_by_its_parent() -> None:
    with process(STARTS, READY, env={"INNER": "d1.2"}) as (_, line):
        assert find_variable(int(line), "INNER", "OUTER") == "d1.2"


def test_the_search_ends_at_this_process() -> None:
    name = "PATH"
    assert os.environ[name]
    with process(READY, env={}) as (pid, _):
        assert find_variable(pid, name) is None
    assert find_variable(os.getpid(), name) is None


def test_a_process_that_is_gone_or_none_says_nothing() -> None:
    with process(READY, env={"INNER": "d1.2"}) as (pid, _):
        pass
    for gone in (pid, 0, -1, 1):
        assert find_variable(gone, "INNER") is None
