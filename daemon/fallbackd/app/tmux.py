"""
Windows of tmux that follow the logs of delegations, for people.

    tmux attach -t fallbackd          all of them; `tmux attach -t fallbackd:d…` one

Each runs `fallbackd-client log -f` and belongs to the user's tmux server, which the end of this
daemon does not touch. At the end of a delegation its window stays, to be read; when there are too
many, those that have ended go, the oldest first.
"""

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping

import anyio
import anyio.to_thread
import structlog

from fallbackd.core.ids import DelegationId
from fallbackd.core.policy import TMUX_SESSION

COMMAND_S = 10.0
QUEUE = 200
_TAKEN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "TZ", "TMUX_TMPDIR")
_PREFIXES = ("LC_", "XDG_")
"""What a tmux server may be started with: it shows its environment to every window."""

log = structlog.get_logger("tmux")


class Windows:
    """
    Args:
        socket: Where the daemon listens.
    """

    def __init__(self, environ: Mapping[str, str], *, socket: str) -> None:
        self._environ = {
            name: value
            for name, value in environ.items()
            if name in _TAKEN or name.startswith(_PREFIXES)
        }
        self._environ.setdefault("TERM", "screen")
        self._socket = socket
        self._ordered: deque[tuple[DelegationId, int]] = deque()
        self._has_order = anyio.Event()

    def open(self, delegation: DelegationId, most: int) -> None:
        """
        Order a window. Returns at once, and nothing that becomes of it disturbs the work.

        Args:
            most: As many may be open, those that have ended included.
        """
        if len(self._ordered) >= QUEUE:
            log.warning("tmux.left_out", delegation=delegation, problem="too many at once")
            return
        self._ordered.append((delegation, most))
        self._has_order.set()

    async def run(self) -> None:
        """Until cancelled. One at a time: the first one makes the session."""
        while True:
            while not self._ordered:
                self._has_order = anyio.Event()
                await self._has_order.wait()
            delegation, most = self._ordered.popleft()
            problem = await anyio.to_thread.run_sync(
                self._open, delegation, most, abandon_on_cancel=True
            )
            if problem is not None:
                log.warning("tmux.failed", delegation=delegation, problem=problem)

    def _open(self, delegation: DelegationId, most: int) -> str | None:
        """Returns what is wrong."""
        self._make_room(most - 1)
        follow = [*client_command(), "--socket", self._socket, "log", "-f", delegation]
        stays = [";", "set-option", "-w", "remain-on-exit", "on"]
        made = self._tmux("has-session", "-t", f"={TMUX_SESSION}")
        if made.returncode == 0:
            place = ["new-window", "-d", "-t", f"={TMUX_SESSION}:"]
            stays[3:3] = ["-t", f"={TMUX_SESSION}:={delegation}"]
        else:
            place = ["new-session", "-d", "-s", TMUX_SESSION, "-x", "160", "-y", "50"]
        ran = self._tmux(*place, "-n", delegation, "--", *follow, *stays)
        return None if ran.returncode == 0 else ran.stderr.strip()[:200] or "it failed"

    def _make_room(self, left: int) -> None:
        """Close ended ones until at most `left` are open."""
        listed = self._tmux(
            *("list-windows", "-t", f"={TMUX_SESSION}", "-F", "#{window_id} #{pane_dead}")
        )
        # Their numbers in the session are given out again, their ids only grow: `@12`.
        lines = [line.split() for line in listed.stdout.splitlines()]
        windows = sorted(lines, key=lambda line: int(line[0][1:]))
        surplus = len(windows) - max(0, left)
        for window, is_ended in windows:
            if surplus > 0 and is_ended == "1":
                self._tmux("kill-window", "-t", window)
                surplus -= 1

    def _tmux(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["tmux", *arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_S,
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return subprocess.CompletedProcess(arguments, 127, "", str(error))


def client_command() -> list[str]:
    """The client that came with this daemon."""
    beside = os.path.join(os.path.dirname(sys.executable), "fallbackd-client")
    found = beside if os.access(beside, os.X_OK) else shutil.which("fallbackd-client")
    return [found] if found else [sys.executable, "-m", "fallbackd_client.cli.main"]
