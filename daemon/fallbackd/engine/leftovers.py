"""
What a killed daemon or runner left: drafts, directories of work that was never taken on, and
attempts that run and that no record knows of, since the database was lost or is an older one.
Looked for once, after the start; nothing new is begun before such attempts are ended.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import anyio.to_thread
import structlog

from fallbackd.core.ids import DelegationId
from fallbackd.core.records import Delegation
from fallbackd.engine.environment import EndLeftover
from fallbackd.engine.runs import ANSWER_DRAFT, Runs
from fallbackd.ports.store import Store

log = structlog.get_logger("leftovers")

DRAFTS = (ANSWER_DRAFT, "*/.*.new")
"""Below the directory of a delegation."""
BARE = frozenset({"prompt", "request", "work"})
"""What the directory of a delegation holds before it is taken on."""


AT_ONCE = 500
"""Records that are kept in one transaction."""
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
        # Where records are missing by damage, it is unknown which work was accepted.
        if is_bare and not store.set_aside and await store.delegation(delegation) is None:
            await anyio.to_thread.run_sync(runs.remove, delegation)
            removed += 1
    if removed:
        log.info("runs.removed", directories=removed, why="never taken on")


def later_records(
    runs: Runs, active: Mapping[DelegationId, Delegation], unknown: Names
) -> list[tuple[Delegation, ...]]:
    """
    What run directories know and the records do not: delegations, attempts, ends. Each that is
    unfinished, or is to be, is alone, since its session is decided with it; oldest first.
    """
    alone: list[Delegation] = []
    ended: list[Delegation] = []
    for name in (*active, *unknown):
        found, known = runs.noted_record(name), active.get(name)
        if found is None:
            continue
        if known is None and found.is_ended:
            ended.append(found)
        elif known is None or _reach(found) > _reach(known):
            alone.append(found)
    alone.sort(key=lambda one: (not one.is_ended, one.created_at))
    together = [tuple(ended[at : at + AT_ONCE]) for at in range(0, len(ended), AT_ONCE)]
    return together + [(one,) for one in alone]


def _reach(one: Delegation) -> tuple[bool, int]:
    return one.is_ended, len(one.attempts)


async def end_strays(
    runs: Runs, before: Names, active: Mapping[DelegationId, int], end: EndLeftover
) -> list[str]:
    """
    End attempts that run without a record: two agents must not work in one place.

    Args:
        active: How many attempts are on record of each unfinished delegation.

    Returns:
        A sentence for each that could not be proven gone.
    """
    found = await anyio.to_thread.run_sync(_strays, runs, before, active)
    left: list[str] = []

    async def stop(directory: Path, attempt: str) -> None:
        try:
            is_gone = await end(str(directory), attempt=attempt)
        except Exception:  # damaged records must not keep the daemon from starting
            log.exception("stray.broke", attempt=attempt)
            is_gone = False
        log.warning("stray.ended" if is_gone else "stray.survived", attempt=attempt)
        if not is_gone:
            runs.survivors.add(attempt)
            left.append(f"{attempt} ({directory}/attempt.json has its pid)")

    async with anyio.create_task_group() as tasks:
        for directory, attempt in found:
            tasks.start_soon(stop, directory, attempt)
    return left


def _strays(runs: Runs, names: Names, active: Mapping[DelegationId, int]) -> list[tuple[Path, str]]:
    found = []
    for delegation in sorted(names):
        for claim in runs.path(delegation).glob("[0-9]*/claim"):
            directory = claim.parent
            if not directory.name.isdigit() or int(directory.name) <= active.get(delegation, 0):
                continue
            if not (directory / "exit.json").exists():
                found.append((directory, f"{delegation}.{directory.name}"))
    return found


def list_directories(root: Path) -> list[DelegationId]:
    """The delegations that have a directory."""
    try:
        return sorted(
            DelegationId(each.name)
            for each in root.iterdir()
            if each.is_dir() and not each.is_symlink()
        )
    except OSError:
        return []


def tidy_one(directory: Path) -> bool:
    """Remove drafts. Returns whether the directory holds nothing that work has left."""
    for pattern in DRAFTS:
        for draft in directory.glob(pattern):
            if draft.parent.is_symlink():
                continue  # what lies behind it is not ours
            try:
                draft.unlink()
            except OSError:
                log.warning("draft.left", path=str(draft))
    try:
        names = {each.name for each in directory.iterdir()}
        return names <= BARE and not any((directory / "work").glob("*"))
    except OSError:
        return False
