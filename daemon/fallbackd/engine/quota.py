"""Figures of plans that come with the work: in answers over HTTP, and in files of a session."""

from typing import TYPE_CHECKING

import anyio
import structlog

from fallbackd.backends.figures import in_headers
from fallbackd.backends.spec import BackendKind
from fallbackd.core.figures import Figures
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Exit, HttpResponse, ProcessExit
from fallbackd.engine.credentials import environ_of

if TYPE_CHECKING:
    from fallbackd.engine.live import LiveAttempt, LiveHost

log = structlog.get_logger("attempts")

TAIL_BYTES = 65_536


async def heard_at_end(
    host: "LiveHost", live: "LiveAttempt", kind: BackendKind, exit: Exit, conversation: str | None
) -> None:
    """Take in what the end of an attempt says of its plan, where it says so nowhere else."""
    order, now = live.order, host.clock.now()
    seen: Figures = ()
    try:
        if isinstance(exit, HttpResponse):
            seen = in_headers(exit.headers, now=now, model=order.model, credential=order.credential)
        elif isinstance(exit, ProcessExit) and conversation is not None:
            seen = await anyio.to_thread.run_sync(_stored, host, order.backend, kind, conversation)
        if seen:
            await host.keep_figures(order.backend, seen)
    except Exception:
        # What another program writes beside its answer must not end what follows it.
        log.exception("quota.not_heard", attempt=order.attempt)


def _stored(host: "LiveHost", backend: BackendId, kind: BackendKind, id: str) -> Figures:
    """The last figures in the agent's own file of a conversation."""
    from fallbackd_conversations.agents import AGENTS  # slow to load
    from fallbackd_conversations.files import read_ends
    from fallbackd_conversations.turns import is_plain_id

    agent = AGENTS.get(kind.name)
    if agent is None or kind.sessions is None or not is_plain_id(id):
        return ()
    place = agent.place(environ_of(host.settings, host.world, backend), host.world.home)
    path = agent.file(place, id)
    if path is None:
        return ()
    data = read_ends(path, tail_bytes=TAIL_BYTES)
    return kind.sessions.read(data, data.split(b"\n"), host.clock.now()).windows
