"""What a person who has an agent open reads about limits: short, since it stands in one line."""

from __future__ import annotations

import time

from fallbackd_client.cli.render import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json
    from fallbackd_conversations.claude import ResumingWord

CONTINUE = "continue here with: fallbackd-client continue"
FIRST = "press Esc, then "
USABLE = ("healthy", "cooldown")


def sentence(
    backend: str, health: Mapping[str, Json], *, resuming: ResumingWord = "no"
) -> str | None:
    """
    `claude is limited until 13:00; continue here with: …`; None: it can be used.

    Args:
        resuming: Whether the agent continues by itself; then the work would be done twice.
    """
    state = health.get("state")
    if state is None or state in USABLE:
        return None
    if state == "rate_limited":
        what = "is limited"
    elif health.get("reason") == "auth":
        what = "needs a login"
    else:
        what = "is unavailable"
    at = until(health)
    first = FIRST if resuming == "waits" else ""
    return f"{one_line(backend)} {what}{f' until {at}' if at else ''}; {first}{CONTINUE}"


def short(backend: str, health: Mapping[str, Json]) -> str:
    """`codex ok`, `codex from 13:00`, `codex out`."""
    name = one_line(backend)
    if health.get("state") in USABLE:
        return f"{name} ok"
    at = until(health)
    return f"{name} from {at}" if at else f"{name} out"


def until(health: Mapping[str, Json]) -> str:
    """The local time at which it is expected back, with the day where it is another one."""
    at = health.get("until_at")
    if not isinstance(at, int | float):
        return ""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%b %d %H:%M", then)
