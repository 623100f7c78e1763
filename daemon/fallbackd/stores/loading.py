"""A database opened, loaded and ready to be decided on."""

from collections.abc import Callable, Mapping
from pathlib import Path

from anyio import to_thread

from fallbackd.core.health.clocks import from_disk
from fallbackd.stores.database import Database
from fallbackd.stores.mirror import Mirror
from fallbackd.stores.sqlite import MAX_ENDED, MAX_JOURNAL, SqliteStore
from fallbackd.stores.trouble import sentence, warn

Since = Callable[[Mapping[str, str]], tuple[float, float]]
"""From the facts: now on the clock of the records, and for how many seconds no daemon ran."""


async def open_sqlite(
    path: Path, *, now: float, since: Since | None = None, database: Database | None = None
) -> SqliteStore:
    """
    Open a database, or make one. Never fails for the state the file or the disk is in: what could
    not be read is in `set_aside`, why nothing can be written in `problem`.

    Args:
        now: For the age of what is loaded, and the names of files that are put aside.
        since: What the facts say about `now` and about the last run; None: nothing.

    Raises:
        StoreTooNew: The file was written by a newer version.
    """
    opening = database or Database(path)
    loaded, trouble = await to_thread.run_sync(lambda: opening.open(now=now))
    stopped_s = 0.0
    if since is not None:
        now, stopped_s = since(loaded.facts)
    running = {one.running.attempt for one in loaded.active if one.running is not None}
    mirror = Mirror(max_ended=MAX_ENDED, max_journal=MAX_JOURNAL)
    mirror.load(
        health=[
            from_disk(one, now=now, stopped_s=stopped_s, running=running) for one in loaded.health
        ],
        meters=loaded.meters,
        sessions=loaded.sessions,
        active=loaded.active,
        finished=loaded.finished,
        facts=loaded.facts,
        last_seq=loaded.last_seq,
    )
    problem = None if trouble is None else sentence(path, trouble)
    if problem is not None:
        warn("store.stopped_writing", problem=problem)
    return SqliteStore(opening, mirror, problem)
