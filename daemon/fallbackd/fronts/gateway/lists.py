"""
Streams as one list of JSON, which Google's API sends where a caller does not ask for events.

The provider is asked for events all the same, so that they are judged as those of other callers. A
stream that breaks off leaves the list without its end.
"""

from fallbackd.backends.passage import MAX_WHOLE_BYTES
from fallbackd.fronts.gateway.answers import AnswerHead, ToCaller
from fallbackd.lib.sse import EventReader, ServerSentEvent

_ABOUT_EVENTS = frozenset({"content-type", "content-length"})


class ListCaller:
    """See `ToCaller`. What is no stream of events goes through as it is."""

    def __init__(self, caller: ToCaller) -> None:
        self._caller = caller
        self._events = EventReader(max_bytes=MAX_WHOLE_BYTES)
        self._is_list = self._is_begun = False
        self._head: AnswerHead | None = None
        """Of an answer whose length is stated: the one of the list is not known yet."""

    @property
    def takes_pieces(self) -> bool:
        return self._caller.takes_pieces

    @property
    def has_left(self) -> bool:
        return self._caller.has_left

    def holds(self, size: int) -> bool:
        return self._caller.holds(size)

    async def begin(self, reply: AnswerHead) -> None:
        named = dict(reply.headers)
        is_stream = named.get("content-type", "").startswith("text/event-stream")
        self._is_list = is_stream and named.get("content-encoding", "identity") == "identity"
        if not self._is_list:
            await self._caller.begin(reply)
            return
        headers = [one for one in reply.headers if one[0] not in _ABOUT_EVENTS]
        headers.append(("content-type", "application/json; charset=UTF-8"))
        head = AnswerHead(status=reply.status, headers=headers)
        if "content-length" in named:
            self._head = head
        else:
            await self._caller.begin(head)

    async def send(self, data: bytes) -> None:
        head, self._head = self._head, None
        if head is None:
            await self._caller.send(self._items(data) if self._is_list else data)
            return
        whole = self._items(data) + self._last()
        self._is_list = False
        head.headers.append(("content-length", str(len(whole))))
        await self._caller.begin(head)
        await self._caller.send(whole)

    def write(self, data: bytes) -> bool:
        return self._caller.write(self._items(data) if self._is_list else data)

    async def drained(self) -> None:
        await self._caller.drained()

    async def end(self) -> None:
        """The answer is whole."""
        if self._is_list:
            await self._caller.send(self._last())

    def _items(self, data: bytes) -> bytes:
        made = self._listed(self._events.feed(data))
        is_blank = bool(data) and not data.strip()
        return b"\n" if is_blank else made  # a keep-alive is one here too

    def _last(self) -> bytes:
        return self._listed(self._events.end()) + (b"]" if self._is_begun else b"[]")

    def _listed(self, events: list[ServerSentEvent]) -> bytes:
        made = bytearray()
        for event in events:
            if event.data.startswith(b"{"):
                made += b",\r\n" if self._is_begun else b"["
                made += event.data
                self._is_begun = True
        return bytes(made)
