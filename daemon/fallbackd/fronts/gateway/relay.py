"""
One answer of one backend on its way to the caller.

Held until its provider has said something that only a provider can say, or to its end; passed on
piece by piece after that. Silence is judged by what the provider says: comments and pings, which
only keep a connection open, do not count.
"""

from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct

from fallbackd.backends import passage
from fallbackd.backends.passage import AnswerWatch, Passage
from fallbackd.backends.sieve import Sieve
from fallbackd.core.protocol import Evidence, Exit, HttpResponse
from fallbackd.fronts.gateway.answers import (
    Aborted,
    NotAnswered,
    ToCaller,
    reply_of,
    silent,
)
from fallbackd.ports.passing import PassedOn

FAREWELL_S = 1.0
"""For the end of a stream whose last event has come."""
AFTER_END_S = 10.0
"""For what still comes behind the reason of an end: usage, the last event."""


class Patience(Struct, frozen=True, kw_only=True):
    first_s: float
    """Until the first words."""
    stall_s: float
    """Between words."""


class Relay:
    """
    Args:
        is_whole: Nothing is passed on before all has arrived.
        said: Our own headers, when the answer begins.
        broken: Called with why an answer that has begun cannot be finished, before the caller
            learns it.
    """

    def __init__(
        self,
        asked: Passage,
        caller: ToCaller,
        patience: Patience,
        *,
        name: str,
        is_whole: bool,
        said: Callable[[], list[tuple[str, str]]],
        broken: Callable[[Evidence], Awaitable[None]],
    ) -> None:
        self._asked = asked
        self._caller = caller
        self._patience = patience
        self._name = name
        self._is_whole = is_whole
        self._said = said
        self._broken = broken
        self._watch = AnswerWatch(asked.mode)
        # Of the other APIs no client reads on behind a damaged event, or none counts its pieces.
        can_sieve = asked.mode == "chat_completions" and asked.is_streamed
        self._sieve = Sieve() if can_sieve else None
        self._held = bytearray()
        self._is_begun = False

    async def run(self, passed: PassedOn) -> NotAnswered | AnswerWatch:
        """
        What was read, when the caller has all of it; else why the next backend is asked.

        Raises:
            Aborted: In the middle of the answer.
        """
        first_s = self._patience.first_s
        give_up_at = anyio.current_time() + first_s
        head: HttpResponse | None = None
        with anyio.move_on_at(give_up_at):
            head = await passed.head()
            if head is None:
                return NotAnswered(evidence=self._watch.finish(passed.exit) or Evidence())
        if head is None:
            return silent(first_s)
        return await self._body(passed, head, give_up_at)

    async def _body(
        self, passed: PassedOn, head: HttpResponse, give_up_at: float
    ) -> NotAnswered | AnswerWatch:
        watch = self._watch
        if head.status >= 300:
            self._sieve = None
        heard_at = anyio.current_time()
        while True:
            data: bytes | None = None
            is_late = True
            with anyio.move_on_at(self._wait_until(heard_at, give_up_at)):
                data = await passed.read()
                is_late = False
            if is_late and not watch.has_ended:
                return await self._silent(since_s=anyio.current_time() - heard_at)
            if data is None:
                return await self._finish(head if is_late else passed.exit, head)
            if self._sieve is not None:
                data = self._sieve.feed(data, may_drop=self._is_begun)
            if watch.feed(data):
                heard_at = anyio.current_time()
            if self._is_begun:
                await self._go_on(data)
                continue
            failed = await self._hold(data, head)
            if failed is not None:
                return failed

    def _wait_until(self, heard_at: float, give_up_at: float) -> float:
        """When silence is long enough."""
        watch = self._watch
        if watch.has_ended:
            return heard_at + self._farewell_s()
        if watch.is_committed or (self._held and not self._asked.is_streamed):
            return heard_at + self._patience.stall_s
        return give_up_at

    async def _hold(self, data: bytes, head: HttpResponse) -> NotAnswered | None:
        """Before the beginning: why the next backend is asked, if so; else it may begin now."""
        watch, is_good = self._watch, head.status < 300
        self._held += data
        if watch.has_failed and is_good:
            evidence = watch.finish(head) or Evidence()
            return NotAnswered(evidence=evidence, reply=reply_of(head), body=bytes(self._held))
        is_held_to_end = self._is_whole or not is_good or not self._asked.is_streamed
        most = passage.MAX_WHOLE_BYTES if is_held_to_end else passage.MAX_HELD_BYTES
        if (watch.is_committed and not is_held_to_end) or len(self._held) > most:
            await self._begin(head)
        return None

    def _farewell_s(self) -> float:
        """How long an answer that has said its end may stay open."""
        if self._watch.is_over:
            return FAREWELL_S
        # Google's servers may say the reason of the end with each piece.
        says_often = self._asked.mode == "generate_content"
        return self._patience.stall_s if says_often else AFTER_END_S

    async def _silent(self, *, since_s: float) -> NotAnswered:
        found = silent(since_s)
        if self._is_begun:
            await self._break_off(found.evidence)
        return found

    async def _go_on(self, data: bytes) -> None:
        """After the beginning: pieces go on as they come, but for one that is damaged."""
        watch = self._watch
        if watch.has_failed:
            if watch.is_told:
                await self._caller.send(data)
            evidence = watch.finish(HttpResponse(status=200)) or Evidence()
            await self._break_off(evidence, is_told=watch.is_told)
        if self._sieve is not None and self._sieve.has_dropped:
            self._held += data  # until it is known whether anything is missing
        else:
            await self._caller.send(data)

    async def _finish(self, exit: Exit, head: HttpResponse) -> NotAnswered | AnswerWatch:
        rest = b"" if self._sieve is None else self._sieve.rest()
        self._watch.feed(rest)
        evidence = self._watch.finish(exit, is_side=bool(self._asked.side))
        if self._is_begun:
            evidence = evidence or self._damage()
            if evidence is not None:
                await self._break_off(evidence)
            await self._caller.send(bytes(self._held) + rest)
            return self._watch
        self._held += rest
        if evidence is not None:
            return NotAnswered(evidence=evidence, reply=reply_of(head), body=bytes(self._held))
        # With its length it is complete for the caller as it arrives, whatever is done after it.
        await self._begin(head, length=len(self._held))
        return self._watch

    def _damage(self) -> Evidence | None:
        """Of an event that was left out, unless it was no piece of the answer."""
        sieve = self._sieve
        if sieve is None or not sieve.has_dropped:
            return None
        if sieve.accounts_for(self._watch.usage.output_tokens):
            return None
        text = "the answer is damaged: an event of the stream cannot be read"
        return Evidence(text=text, stream="http", code="malformed_response", answered=True)

    async def _break_off(self, evidence: Evidence, *, is_told: bool = False) -> None:
        """
        Mark the backend before the caller knows: it may try again at once.

        Raises:
            Aborted: Always.
        """
        await self._broken(evidence)
        if not is_told:
            text = f"{self._name} broke off its answer"
            await self._caller.send(passage.error_event(self._asked.mode, text))
        raise Aborted

    async def _begin(self, head: HttpResponse, *, length: int | None = None) -> None:
        self._is_begun = True
        reply = reply_of(head)
        if length is not None:
            reply.headers.append(("content-length", str(length)))
        reply.headers.extend(self._said())
        await self._caller.begin(reply)
        await self._caller.send(bytes(self._held))
        self._held.clear()
