"""
Directories in which a helper server works for prompts of ours.

opencode keeps an instance for each directory, with the MCP servers and language servers of that
project, until it is asked to dispose of it. That ends what runs in the directory, so no prompt may
enter it meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

import anyio


class ServerPlaces:
    def __init__(self, dispose: Callable[[str], Awaitable[None]]) -> None:
        """
        Args:
            dispose: Ends the instance of a directory. Bounded, and raises nothing.
        """
        self._dispose = dispose
        self._prompts: Counter[str] = Counter()
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def enter_running(self, cwd: str) -> None:
        """A prompt of an earlier daemon is at work there."""
        self._prompts[cwd] += 1

    async def enter(self, cwd: str) -> None:
        """Waits for the end of an instance that is being disposed of."""
        self._prompts[cwd] += 1
        async with self._locks[cwd]:
            pass

    def leave(self, cwd: str) -> bool:
        """Whether no prompt is there any more."""
        self._prompts[cwd] -= 1
        return self._prompts[cwd] == 0

    async def dispose(self, cwd: str) -> None:
        """Dispose of the instance, unless a prompt has entered again."""
        async with self._locks[cwd]:
            if self._prompts[cwd] == 0:
                del self._prompts[cwd]
                await self._dispose(cwd)
        if cwd not in self._prompts:
            self._locks.pop(cwd, None)
