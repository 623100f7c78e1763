"""Where records are kept, one file per way of keeping them."""

from fallbackd.ports.store import Store
from fallbackd.stores.memory import MemoryStore


async def open_store(url: str, *, now: float) -> Store:
    """
    Open the store that a URL names: `memory:` or `sqlite:<path>`.

    Raises:
        ValueError: The scheme is unknown.
    """
    scheme, _, _rest = url.partition(":")
    match scheme:
        case "memory":
            return MemoryStore()
        case _:
            raise ValueError(f"no such kind of store: {scheme!r} (memory: and sqlite:<path> exist)")
