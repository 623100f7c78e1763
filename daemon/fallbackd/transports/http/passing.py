"""
Requests that are passed on for a caller: nothing of them is kept, on disk or in memory.

They share the way out with the requests of attempts: pools, proxies, TLS settings, and secrets,
which are hidden in an error that comes back: its reader says where an answer with status 200 states
one. An answer is the caller's own, to the byte: where the key of a local server is a plain word,
the word may be meant.
"""

from collections.abc import AsyncIterator

import anyio
from msgspec import structs

from fallbackd.core.protocol import Exit, HttpRequest, HttpResponse, NoAnswer, NotStarted
from fallbackd.ports.passing import TakePiece
from fallbackd.transports.http.answering import Broken
from fallbackd.transports.http.clients import CLOSE_LIMIT_S
from fallbackd.transports.http.direct import DirectAnswer
from fallbackd.transports.http.running import BodyLine, Carried, HttpRunning, ResponseRead


class HttpPassing(HttpRunning):
    """See `ports.passing.PassedOn`."""

    def __init__(
        self, call: HttpRequest, *, carried: Carried, problem: NotStarted | None, line: BodyLine
    ) -> None:
        super().__init__(call, carried=carried, problem=problem, line=line, directory="")
        self._response: ResponseRead | None = None
        self._head = HttpResponse(status=0)
        self._body: AsyncIterator[bytes] | None = None
        self._is_masked = True

    async def head(self) -> HttpResponse | None:
        if self._exit is not None:
            return None
        answer = await self._sent()  # its caller cancels it, nothing else stops it
        if isinstance(answer, NoAnswer):
            self._exit = answer
            return None
        self._response, self._body = answer, answer.aiter_bytes()
        self._head = self._responded(answer, is_broken=False)
        self._is_masked = self._head.status >= 300
        return self._head

    async def read(self) -> bytes | None:
        while self._exit is None:
            assert self._body is not None
            data, broken = await self._next(self._body)
            if data is None:
                self._exit = self._ended(is_broken=bool(broken))
                data = self._mask.end()
            elif self._is_masked:
                data = self._mask.feed(data)
            if data:
                return data
        return None

    async def flow(self, take: TakePiece) -> bool:
        direct = self._response
        if self._exit is None and isinstance(direct, DirectAnswer):
            return await self._flow(direct, take)
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    async def _flow(self, response: DirectAnswer, take: TakePiece) -> bool:
        """Without a task in between; the caller bounds the silence."""

        def masked(data: bytes) -> bool:
            data = self._mask.feed(data)
            return not data or take(data)

        is_broken = False
        try:
            if not await response.flow(masked if self._is_masked else take):
                return False
        except Broken:
            is_broken = True
        self._exit = self._ended(is_broken=is_broken)
        if rest := self._mask.end():
            take(rest)
        return True

    def masked(self, data: bytes) -> bytes:
        return self._carried.values.mask(data)

    def _ended(self, *, is_broken: bool) -> HttpResponse:
        return structs.replace(self._head, at=self._clock.now(), truncated=is_broken)

    @property
    def exit(self) -> Exit:
        if self._exit is None:
            self._exit = NoAnswer(
                exception="Cancelled", text="left before its end", at=self._clock.now()
            )
        return self._exit

    @property
    def stated(self) -> None:
        return None

    async def aclose(self) -> None:
        response, self._response = self._response, None
        if isinstance(response, DirectAnswer):
            response.close()
        elif response is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await response.aclose()
