"""
Files that a killed daemon or runner left half made: drafts, and directories of work that was
never taken on. Looked for once, after the start, while work goes on.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import anyio.to_thread
import structlog

from fallbackd.core.ids import DelegationId
from fallbackd.engine.runs import Runs
from fallbackd.ports.store import Store

log = structlog.get_logger("leftovers")

DRAFTS = ("answer.part", "*/.*.new")
"""Below the directory of a delegation."""
BARE = frozenset({"prompt", "work"})
"""What the directory of a delegation holds before it is taken on."""


Names = Collection[DelegationId]


async def tidy(runs: Runs, store: Store, before: Names, active: Callable[[], Names]) -> None:
    """
    Args:
        before: Directories that were there before this daemon took any work.
        active: Whose files may be in the making now.
    """
    try:
        await _tidy(runs, store, before, active)
    except Exception:  # what is left over must not keep the daemon from its work
        log.exception("leftovers.broke")


async def _tidy(runs: Runs, store: Store, before: Names, active: Callable[[], Names]) -> None:
    removed = 0
    for delegation in before:
        if delegation in active():
            continue
        is_bare = await anyio.to_thread.run_sync(tidy_one, runs.path(delegation))
        # Where records are missing by damage, nobody can tell what was taken on.
        if is_bare and not store.set_aside and await store.delegation(delegation) is None:
            await anyio.to_thread.run_sync(runs.remove, delegation)
            removed += 1
    if removed:
        log.info("runs.removed", directories=removed, why="never taken on")


def list_directories(root: Path) -> list[DelegationId]:
    """The delegations that have a directory."""
    try:
        return sorted(DelegationId(each.name) for each in root.iterdir() if each.is_dir())
    except OSError:
        return []


def tidy_one(directory: Path) -> bool:
    """Remove drafts. Returns whether the directory holds nothing that work has left."""
    for pattern in DRAFTS:
        for draft in directory.glob(pattern):
            try:
                draft.unlink()
            except OSError:
                log.warning("draft.left", path=str(draft))
    try:
        names = {each.name for each in directory.iterdir()}
        return names <= BARE and not any((directory / "work").glob("*"))
    except OSError:
        return False
