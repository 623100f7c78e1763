"""
Brings a whole family of processes to its end, and proves it.

As sub-reaper, the runner becomes the parent of every orphan below it. So when `waitpid(-1)` says
ECHILD no process is left, detached grandchildren included: the kernel's own proof.
"""

import os
import signal

from fallbackd.transports.process.runner import tree

_ROUNDS = 100


class Reaper:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Wait status of the program itself."""
        self.is_childless = False
        self._asked: set[tuple[int, int]] = set()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.is_childless = True
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def ask(self) -> None:
        """
        Send TERM to every process that has not had one yet.

        Once each: many programs take a second one for impatience and skip their own clean-up.
        """
        for each in self.remaining():
            if (each.pid, each.start) not in self._asked:
                self._asked.add((each.pid, each.start))
                tree.send_signal(each, signal.SIGTERM)
                if each.state in "Tt":
                    tree.send_signal(each, signal.SIGCONT)

    def kill(self) -> None:
        """Send KILL to all, repeatedly until no new process appears (fork races)."""
        if self.status is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        killed: set[tuple[int, int]] = set()
        for _ in range(_ROUNDS):
            fresh = [each for each in self.remaining() if (each.pid, each.start) not in killed]
            if not fresh:
                return
            for each in fresh:
                killed.add((each.pid, each.start))
                tree.send_signal(each, signal.SIGKILL)

    @staticmethod
    def remaining() -> list[tree.Process]:
        try:
            below = tree.descendants([os.getpid()], tree.processes())
        except OSError:
            return []  # without a free descriptor: looked at again, and ECHILD alone is the proof
        return [each for each in below if not each.is_dead]
