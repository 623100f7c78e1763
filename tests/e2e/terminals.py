"""A shell at a terminal, and somebody who types."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HANG_S = 60.0
"""Only a hang takes this long."""
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
START_OF_LINE = "\x01"
"""Ctrl-A."""


class Terminal:
    def __init__(self, master: int) -> None:
        self._master = master
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, pattern: str) -> re.Match[str]:
        """What is shown from here on, up to where the pattern ends."""
        ends_at = time.monotonic() + HANG_S
        while (found := re.search(pattern, self._shown)) is None:
            left_s = ends_at - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left_s))
            if not ready:
                raise AssertionError(f"{pattern!r} was not shown: {self._shown!r}")
            try:
                data = os.read(self._master, 65536)
            except OSError as error:  # the shell has gone
                raise AssertionError(f"{pattern!r} was not shown: {self._shown!r}") from error
            self._shown = _SEQUENCES.sub("", self._shown + data.decode(errors="replace"))
        self._shown = self._shown[found.end() :]
        return found

    def do(self, command: str) -> None:
        """Run a command line, and wait for its end."""
        # The mark is written in two parts, so that its echo is not taken for it.
        self.type(f"{command}; echo ready''-now\n")
        self.read_until(r"[\r\n]ready-now\r?\n")

    def completed(self, typed: str) -> list[str]:
        """The words of the line after `typed` and one press of Tab."""
        self.type(f"{typed}\t{START_OF_LINE}printf '<%s>' \n")
        # Twice: once as it is echoed, once as it is printed.
        printed = self.read_until(r"[\r\n](<fallbackd-client>(?:<[^<>\r\n]*>)*)")
        self.do(":")
        return re.findall(r"<([^<>]*)>", printed[1])


def require(shell: str) -> str:
    path = shutil.which(shell)
    assert path is not None, f"{shell} is not on PATH: install the package {shell}"
    return path


@contextmanager
def terminal(argv: list[str], *, env: Mapping[str, str], cwd: Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**env, "TERM": "xterm", "COLUMNS": "300", "PS1": "> "},
            preexec_fn=lambda: os.login_tty(0),
        )
    finally:
        os.close(slave)
    try:
        yield Terminal(master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
