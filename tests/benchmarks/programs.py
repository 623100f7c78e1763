"""Programs that stand beside what is measured, each in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Yields the port that it prints when it listens, and its pid."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()
