"""What a failed attempt has left in its directory: files that are new, other or gone."""

import anyio.to_thread
from msgspec import structs

from fallbackd.core.events import AttemptEnded
from fallbackd.core.watch import worse
from fallbackd.engine.environment import World
from fallbackd.engine.live import Fingerprint, LiveHost, Prepared

MAX_FILES = 50


async def with_tracks(
    host: LiveHost,
    prepared: Prepared,
    ended: AttemptEnded,
    *,
    cwd: str,
    before: Fingerprint | None,
    started_at: float,
) -> AttemptEnded:
    """
    Args:
        before: The directory at the start; None: unknown.
    """
    if before is not None:
        changed = await _changed(host, prepared, cwd, before)
    else:
        changed = await _changed_since(host.world, cwd, started_at)
    if changed:
        effects = worse(ended.effects, "seen")
        return structs.replace(ended, effects=effects, changed_files=changed)
    if before is None and ended.effects == "none":
        return structs.replace(ended, effects="possible")  # what was deleted is not seen
    return ended


async def _changed(
    host: LiveHost, prepared: Prepared, cwd: str, before: Fingerprint
) -> tuple[str, ...]:
    """Files that are new, other or gone since the start."""
    after = await anyio.to_thread.run_sync(host.world.fingerprint, cwd)
    if after is None:
        return ()
    prepared.looked.keep(after, now=host.clock.now())
    found = {path for path, seen in after.items() if before.get(path) != seen}
    found.update(path for path in before if path not in after)
    return tuple(sorted(found)[:MAX_FILES])


async def _changed_since(world: World, cwd: str, started_at: float) -> tuple[str, ...]:
    """What was written since then, where the state before is unknown."""
    after = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    since_ns = int(started_at * 1e9)
    found = (path for path, (mtime_ns, _) in (after or {}).items() if mtime_ns >= since_ns)
    return tuple(sorted(found)[:MAX_FILES])
