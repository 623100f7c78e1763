"""
Keep-alives in a streamed answer that is held for long.

Programs leave a server whose head does not come: gemini after a minute, Claude Code and opencode
after five. The first keep-alive takes the head with it, so that a failure of all backends is
reported behind it by an event, and our own headers are missing.
"""

from collections.abc import Awaitable, Callable

import anyio
import msgspec

from fallbackd.backends.lines import fields, read_object, words
from fallbackd.backends.passage import Passage, error_event
from fallbackd.backends.spec import ApiMode
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, ToCaller

_HEAD = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
_COMMENT = b": keepalive\n\n"
_BLANK = b"\n\n"
"""The library of Google's clients reads no comments, and waits for more behind one."""
MAX_SAID_CHARS = 500
_BEGUN = {"id": "", "object": "response", "status": "in_progress", "output": []}


class KeptAlive:
    """
    See `ToCaller`. The caller of one streamed request.

    Args:
        every_s: Between two keep-alives, and before the first one.
    """

    def __init__(self, caller: ToCaller, mode: ApiMode, *, every_s: float) -> None:
        self._caller = caller
        self._mode: ApiMode = mode
        self._every_s = every_s
        self._is_open = False
        self._is_begun = False
        self._unfit = ""
        """Why what follows cannot stand behind the head that has left; empty: it can."""

    @property
    def takes_pieces(self) -> bool:
        return self._caller.takes_pieces

    @property
    def has_left(self) -> bool:
        return self._caller.has_left

    def holds(self, size: int) -> bool:
        return self._caller.holds(size)

    async def during(self, answer: Callable[[], Awaitable[None]]) -> None:
        """What `answer` raises is raised, in no group."""
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            try:
                await answer()
            except Exception as error:
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(self._every_s)
            if self._is_begun:
                return
            if not self._is_open:
                self._is_open = True
                await self._caller.begin(AnswerHead(status=200, headers=list(_HEAD)))
            self._caller.write(_BLANK if self._mode == "generate_content" else _COMMENT)

    async def _fail(self, message: str, body: bytes = b"") -> None:
        """
        Args:
            body: Of an error in the words of the API, which are kept.
        """
        await self._caller.send(_error_event(self._mode, message[:MAX_SAID_CHARS], body))
        raise Aborted

    async def begin(self, reply: AnswerHead) -> None:
        if self._is_begun:
            raise Aborted
        self._is_begun = True
        if not self._is_open:
            await self._caller.begin(reply)
            return
        named = dict(reply.headers)
        is_stream = named.get("content-type", "").startswith("text/event-stream")
        if reply.status >= 300:
            self._unfit = f"the last backend answered with status {reply.status}"
        elif not is_stream or named.get("content-encoding", "identity") != "identity":
            self._unfit = "the backend answered with something else than a stream of events"

    def write(self, data: bytes) -> bool:
        return not self._unfit and self._caller.write(data)

    async def send(self, data: bytes) -> None:
        if self._unfit:
            await self._fail(self._unfit, data)
        await self._caller.send(data)

    async def drained(self) -> None:
        if self._unfit:
            await self._fail(self._unfit)
        await self._caller.drained()


def kept_alive(caller: ToCaller, asked: Passage, *, every_s: float | None) -> KeptAlive | None:
    """None: its answer comes in one piece, or none is wanted."""
    if every_s is None or not (asked.is_streamed and caller.takes_pieces):
        return None
    return KeptAlive(caller, asked.mode, every_s=every_s)


def _error_event(mode: ApiMode, message: str, body: bytes) -> bytes:
    value = read_object(body) or {}
    error = fields(value.get("error"))
    if mode == "responses":
        # The library of OpenAI reads no failure of a response that it has not seen begin.
        created = {"type": "response.created", "sequence_number": 0, "response": _BEGUN}
        begun = b"event: response.created\ndata: " + msgspec.json.encode(created) + b"\n\n"
        said, code = words(error.get("message")), words(error.get("code"))
        follows = {"id": "", "sequence_number": 1, "code": code or "server_error"}
        return begun + error_event(mode, said or message, follows)
    if not error:
        return error_event(mode, message)
    head = b"event: error\n" if mode == "messages" else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"
