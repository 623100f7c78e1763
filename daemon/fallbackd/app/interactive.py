"""Files of sessions that a person has open, followed while the configuration asks for it."""

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping

import anyio
import anyio.to_thread
import structlog

from fallbackd.config.schema import Interactive
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import TMUX_SESSION
from fallbackd.engine import interactive
from fallbackd.engine.api import Engine
from fallbackd.transports.session_files import NewLines, follow

COMMAND_S = 10.0
QUEUE = 200
_TAKEN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "TZ", "TMUX_TMPDIR")
_PREFIXES = ("LC_", "XDG_")
"""What a tmux server may be started with: it shows its environment to every window."""

tmux_log = structlog.get_logger("tmux")


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
            tmux_log.warning("tmux.left_out", delegation=delegation, problem="too many at once")
            return
        self._ordered.append((delegation, most))
        self._has_order.set()

    async def run(self) -> None:
        """Run until cancelled, one at a time: the first one makes the session."""
        while True:
            while not self._ordered:
                self._has_order = anyio.Event()
                await self._has_order.wait()
            delegation, most = self._ordered.popleft()
            problem = await anyio.to_thread.run_sync(
                self._open, delegation, most, abandon_on_cancel=True
            )
            if problem is not None:
                tmux_log.warning("tmux.failed", delegation=delegation, problem=problem)

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


log = structlog.get_logger("interactive")


class InteractiveService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[str, BackendId] = {}
        self._changed = anyio.Event()

    def configure(self, wanted: Interactive) -> None:
        """Also where other things were configured: an account more is a place more."""
        engine = self._engine
        places = interactive.followed(engine.settings, engine.world, wanted.watch)
        if places != self._places:
            self._places = places
            self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed = anyio.Event()
            async with anyio.create_task_group() as tasks:
                if self._places:
                    tasks.start_soon(self._follow, dict(self._places))
                await self._changed.wait()
                tasks.cancel_scope.cancel()

    async def _follow(self, places: dict[str, BackendId]) -> None:
        following = follow(tuple(places))
        await anext(following)
        log.info("interactive.following", places=sorted(places))
        async for found in following:
            for news in found:
                await self._hear(places[news.place], news)

    async def _hear(self, backend: BackendId, news: NewLines) -> None:
        engine = self._engine
        known = engine.settings.policy.backends.get(backend)
        kind = None if known is None else engine.world.kinds.get(known.kind)
        if kind is None or kind.sessions is None:
            return
        try:
            await interactive.heard(
                engine, backend, kind.sessions.read(news.head, news.lines, engine.clock.now())
            )
        except Exception:
            # What another program writes must not end what hears of the next limit.
            log.exception("interactive.not_heard", path=news.path)
