"""A tmux server of a test, found by its directory."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from tests.support.daemon import HANG_S


class Tmux:
    def __init__(self, directory: str) -> None:
        self.env = {"TMUX_TMPDIR": directory}

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """What it prints. `env`: of the server, where this is what starts it."""
        return self._run(arguments, env or {}).stdout

    def _run(
        self, arguments: tuple[str, ...], env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        bare = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        return subprocess.run(
            ["tmux", *arguments],
            env={**bare, **env, **self.env},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def shown(self, window: str) -> str:
        """What the window shows, and what has gone out of sight above."""
        return self.run("capture-pane", "-p", "-S", "-", "-t", window)

    async def until(self, window: str, words: str, *, hang_s: float = HANG_S) -> str:
        shown = ""
        try:
            with anyio.fail_after(hang_s):
                while not re.search(words, shown := self.shown(window)):
                    await anyio.sleep(0.1)
        except TimeoutError as error:
            raise AssertionError(f"{words!r} was not shown:\n{shown}") from error
        return shown


@contextmanager
def tmux_server() -> Iterator[Tmux]:
    directory = tempfile.mkdtemp(prefix="fbd-tmux-")
    one = Tmux(directory)
    try:
        yield one
    finally:
        one.run("kill-server")
        shutil.rmtree(directory, ignore_errors=True)
