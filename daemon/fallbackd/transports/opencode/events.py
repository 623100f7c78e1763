"""The stream of events of an opencode server, as both of its clients read it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fallbackd.lib.sse import EventReader

if TYPE_CHECKING:
    import httpx2

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A longer event is skipped: it holds the output of a tool, which nothing here needs whole."""


async def event_data(answer: "httpx2.Response") -> AsyncIterator[bytes]:
    """The data of each event; one that did not arrive as it was sent is skipped."""
    reader = EventReader(max_bytes=MAX_EVENT_BYTES)
    async for piece in answer.aiter_bytes():
        for event in reader.feed(piece):
            if event.data and not event.problem:
                yield event.data
