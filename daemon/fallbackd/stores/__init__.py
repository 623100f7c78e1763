"""Stores of records, one file per way of keeping them."""

from pathlib import Path

from fallbackd.ports.store import Store
from fallbackd.stores.memory import MemoryStore
from fallbackd.stores.sqlite import Since, open_sqlite


async def open_store(url: str, *, now: float, since: Since | None = None) -> Store:
    """
    Open the store that a URL names: `memory:` or `sqlite:<path>`.

    Args:
        since: See `open_sqlite`.

    Raises:
        ValueError: The scheme is unknown.
        opening.StoreTooNew: The records were written by a newer version.
    """
    scheme, _, rest = url.partition(":")
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return await open_sqlite(Path(rest), now=now, since=since)
        case _:
            raise ValueError(f"no such kind of store: {scheme!r} (memory: and sqlite:<path> exist)")
