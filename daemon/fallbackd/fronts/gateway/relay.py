"""
One answer of one backend on its way to the caller.

Held until its provider has said something that only a provider can say, or to its end; passed on
piece by piece after that. Silence is judged by what the provider says: comments and pings, which
only keep a connection open, do not count.

An answer is held until a piece of it has come (`HttpParser.has_said`). The parsers of attempts read
it beside its way: they decide when it has begun, whether it is whole, and what its failure is. Once
it has begun, an event is sent first and read after. What may be an error is read first: the key of
the backend is masked in it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

import anyio
from msgspec import structs

from fallbackd.backends import passage
from fallbackd.backends.lines import read_object
from fallbackd.backends.passage import LAST_EVENTS, AnswerWatch, Passage
from fallbackd.backends.sieve import Sieve
from fallbackd.core.protocol import Evidence, Exit, HttpResponse, Usage
from fallbackd.fronts.gateway.answers import Aborted, NotAnswered, ToCaller, reply_of, silent
from fallbackd.fronts.gateway.patience import Patience
from fallbackd.fronts.gateway.room import no_room
from fallbackd.lib import sse
from fallbackd.ports.transport import PassedOn

# --- answers that cannot be read -----------------------------------------------------------------
# Answers in a coding that is not looked into, though it was not asked for.


def is_sealed(head: HttpResponse) -> bool:
    return head.headers.get("content-encoding", "identity").strip().lower() != "identity"


class SealedWatch(AnswerWatch):
    """Whatever comes counts as said, and the end of the body as the end of the answer."""

    _has_come = False

    @property
    def is_committed(self) -> bool:
        return self._has_come

    def feed(self, data: bytes) -> bool:
        self._has_come = self._has_come or bool(data)
        return bool(data)

    def finish(self, exit: Exit, *, is_side: bool = False) -> Evidence | None:
        if not self._has_come or not isinstance(exit, HttpResponse):
            return super().finish(exit, is_side=is_side)
        is_whole = exit.status < 300 and not (exit.truncated or exit.stopped)
        return None if is_whole else super().finish(exit, is_side=is_side)

    def error_event(self, message: str) -> bytes:
        return b""  # it would be no part of the coding


# --- the relay -----------------------------------------------------------------------------------

FAREWELL_S = 1.0
"""Wait for the end of a stream whose last event has come, or of ended chat completions."""
AFTER_END_S = 10.0
"""Wait for what still comes behind the reason of an end: usage, the last event, another answer."""


class Relay:
    """
    Args:
        is_whole: Nothing is passed on before all has arrived.
        said: Our own headers, when the answer begins; called with whether it has said anything,
            and what it used, where it is whole.
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
        said: Callable[[bool, Usage | None], Awaitable[list[tuple[str, str]]]],
        broken: Callable[[Evidence], Awaitable[None]],
    ) -> None:
        self._asked = asked
        self._caller = caller
        self._patience = patience
        self._name = name
        self._is_whole = is_whole
        self._said = said
        self._broken = broken
        self._watch = AnswerWatch(
            asked.mode, side=asked.side, waits_for_text=patience.waits_for_text
        )
        # Of the other APIs no client reads on behind a damaged event, or none counts its pieces.
        leaves_out = asked.mode == "chat_completions"
        self._sieve = Sieve(leaves_out=leaves_out) if asked.is_streamed else None
        self.head: HttpResponse | None = None
        """Of the answer that has begun to arrive, as its provider sent it."""
        self._held = bytearray()
        self._is_begun = False
        self._is_clear = True
        """The next event begins with the next piece, and nothing before it is missing or wrong."""
        self._is_good = self._is_held_to_end = False
        self._asked_at = self._heard_at = 0.0
        self._time = asyncio.get_running_loop().time
        """Clock of `anyio.current_time`, which looks for its loop each time."""

    @property
    def response_id(self) -> str:
        """The name under which its provider keeps it; empty: the caller has seen none."""
        return self._watch.response_id if self._is_begun else ""

    @property
    def is_silent(self) -> bool:
        """Return whether not even the head of an answer has come."""
        return self._heard_at == 0.0

    def close(self) -> None:
        """Nothing follows: what hears of the answer knows this relay, and would be kept by it."""
        del self._said, self._broken

    async def run(self, passed: PassedOn) -> NotAnswered | AnswerWatch:
        """
        Return what was read, when the caller has all of it; else why the next backend is asked.

        Raises:
            Aborted: In the middle of the answer.
        """
        first_s = self._patience.first_s
        self._asked_at = self._time()
        give_up_at = self._asked_at + first_s
        head: HttpResponse | None = None
        is_over = False
        with anyio.move_on_at(give_up_at):
            head = await passed.head()
            if head is None:
                return NotAnswered(evidence=self._why(passed, passed.exit) or Evidence())
            self._opens(head)
            is_over = await passed.flow(self._take)
        if head is None:
            return silent(first_s)
        return await self._body(passed, head, give_up_at, is_over=is_over)

    def _opens(self, head: HttpResponse) -> None:
        self.head = head
        self._is_good = head.status < 300
        self._is_held_to_end = self._is_whole or not self._is_good or not self._asked.is_streamed
        is_opaque = is_sealed(head)
        if is_opaque:
            self._watch = SealedWatch(self._asked.mode)
        if is_opaque or not self._is_good:
            self._sieve = None
        self._heard_at = self._time()

    async def _body(
        self, passed: PassedOn, head: HttpResponse, give_up_at: float, *, is_over: bool
    ) -> NotAnswered | AnswerWatch:
        """
        Args:
            is_over: What became of the first look at it.
        """
        watch = self._watch
        while True:
            is_failed = self._is_begun and watch.has_failed
            is_late = not (is_over or is_failed) and self._time() >= self._wait_until(give_up_at)
            if is_late and not watch.has_ended:
                if not self._may_be_released:
                    return await self._silent()
                self._heard_at = self._time()
                await self._begin(head)
            elif is_over or is_late:
                return await self._finish(passed, head if is_late else passed.exit, head)
            elif self._is_begun:
                await self._go_on(passed)
            elif (failed := await self._begin_or_fail(passed, head)) is not None:
                return failed
            with anyio.move_on_at(self._wait_until(give_up_at)):
                is_over = await passed.flow(self._take)

    def _wait_until(self, give_up_at: float) -> float:
        """Return the instant at which silence is long enough."""
        watch = self._watch
        if watch.has_ended:
            is_last = watch.is_over or self._ends_with_its_reason
            return self._heard_at + (FAREWELL_S if is_last else AFTER_END_S)
        quiet_until = self._heard_at + self._patience.stall_s
        if watch.is_committed:
            return quiet_until
        if self._asked.is_streamed:
            is_waited_for = self._is_held_to_end and self._is_good and self._patience.may_think
            is_opened = self._is_begun or is_waited_for
        else:
            is_opened = bool(self._held)
        # Pings are a sign of the connection alone, and may come for ever.
        return min(quiet_until, give_up_at + self._patience.unsaid_s) if is_opened else give_up_at

    @property
    def _ends_with_its_reason(self) -> bool:
        """Return whether nothing that matters stands behind the reason of the end."""
        return self._asked.mode == "chat_completions" and self._asked.is_single

    @property
    def _may_be_released(self) -> bool:
        """Return whether what is held is passed on although no word of the answer has come."""
        is_held = not self._is_begun and not self._is_held_to_end
        may_wait = self._patience.may_think or self._watch.has_thought
        return is_held and may_wait and not self._watch.is_committed

    def _take(self, data: bytes) -> bool:
        """One piece, as it arrives. False: there is more to do than to pass it on."""
        # Reading takes longer than all else on the way of an event, and is done behind it where the
        # caller gets the event whatever it says; in an error the key of the backend is masked.
        is_open = self._is_begun and self._is_clear
        is_sent = is_open and not _may_state_error(data) and _can_be_read(data)
        is_taken = not is_sent or self._caller.write(data)
        watch = self._watch
        had_ended = watch.has_ended
        data = self._read(data, is_sent=is_sent)
        is_same = had_ended == watch.has_ended  # the silence behind an end is shorter
        if is_sent:
            return is_taken and is_same and not watch.has_failed
        return self._goes_on_with(data) and is_same

    def _read(self, data: bytes, *, is_sent: bool) -> bytes:
        """Return what the caller may get of it, as far as it is whole."""
        is_between = sse.ends_event(data)
        sieve = self._sieve
        if sieve is not None and (sieve.leaves_out or not is_sent):
            data = sieve.feed(data, may_drop=self._is_begun)
            is_between = is_between and sieve.is_clear
        if self._watch.feed(data):
            self._heard_at = self._time()
        self._is_clear = is_between and not self._watch.has_failed
        return data

    def _goes_on_with(self, data: bytes) -> bool:
        """Hold or write what was read first. False: there is more to do."""
        if not self._is_begun or self._watch.has_failed:
            self._hold(data)
            return not (self._is_begun or self._is_to_begin())
        if self._sieve is not None and self._sieve.has_dropped:
            self._hold(data)  # until it is known whether anything is missing
            return True
        return self._caller.write(data)

    def _hold(self, data: bytes) -> None:
        """
        Raises:
            Refusal: There is no room for it.
        """
        self._held += data
        if not self._caller.holds(len(self._held)):
            raise no_room()

    def _is_to_begin(self) -> bool:
        """Return whether what is held is enough to decide, one way or the other."""
        watch = self._watch
        waits = self._is_held_to_end or self._patience.waits_for_text
        most = passage.MAX_WHOLE_BYTES if waits else passage.MAX_HELD_BYTES
        is_many = not waits and watch.events >= passage.MAX_HELD_EVENTS
        is_said = watch.is_committed or is_many
        is_bad = watch.has_failed and self._is_good
        return is_bad or (is_said and not self._is_held_to_end) or len(self._held) > most

    async def _begin_or_fail(self, passed: PassedOn, head: HttpResponse) -> NotAnswered | None:
        """Decide before the beginning: why the next backend is asked, or that it may begin."""
        if self._watch.has_failed and self._is_good:
            return self._not_answered(passed, head, self._why(passed, head) or Evidence())
        if self._is_to_begin():
            await self._begin(head)
        return None

    async def _silent(self) -> NotAnswered:
        since_at = self._heard_at if self._watch.is_committed else self._asked_at
        found = silent(self._time() - since_at)
        if self._is_begun:
            await self._break_off(found.evidence)
        return found

    async def _go_on(self, passed: PassedOn) -> None:
        """Go on after the beginning, where a piece was more than one to pass on."""
        watch = self._watch
        if watch.has_failed:
            if watch.is_told:
                await self._caller.send(masked_from_error(bytes(self._held), passed))
            evidence = self._why(passed, HttpResponse(status=200, gone=True)) or Evidence()
            await self._break_off(evidence, is_told=watch.is_told)
        await self._caller.drained()

    async def _finish(
        self, passed: PassedOn, exit: Exit, head: HttpResponse
    ) -> NotAnswered | AnswerWatch:
        rest = b"" if self._sieve is None else self._sieve.rest()
        self._watch.feed(rest)
        evidence = self._why(passed, exit)
        if self._is_begun:
            evidence = evidence or self._damage()
            if evidence is not None:
                await self._break_off(evidence)
            await self._caller.send(bytes(self._held) + rest + self._last_event(rest))
            return self._watch
        self._held += rest
        if evidence is not None:
            return self._not_answered(passed, head, evidence)
        self._held += self._last_event(rest)
        # With its length it is complete for the caller as it arrives, whatever is done after it.
        await self._begin(head, length=len(self._held))
        return self._watch

    def _not_answered(
        self, passed: PassedOn, head: HttpResponse, evidence: Evidence
    ) -> NotAnswered:
        body = passed.masked(bytes(self._held))
        return NotAnswered(evidence=evidence, reply=reply_of(head), body=body)

    def _last_event(self, rest: bytes) -> bytes:
        """
        Make what the provider has left out behind a whole answer, and clients look for.

        Args:
            rest: Behind the last event that was complete.
        """
        last = LAST_EVENTS.get(self._asked.mode, b"")
        if not last or self._watch.is_over or not (self._is_good and self._watch.is_stream):
            return b""
        return b"\n\n" + last if rest else last

    def _why(self, passed: PassedOn, exit: Exit) -> Evidence | None:
        """Say why it is no whole answer, in the words of its provider; None: it is one."""
        evidence = self._watch.finish(exit, is_side=self._asked.is_any_object)
        if evidence is None:
            return None
        text = passed.masked(evidence.text.encode("utf-8", "surrogatepass"))
        is_stated = evidence.body is not None and passed.stated is not None
        body = passed.stated if is_stated else evidence.body
        return structs.replace(evidence, text=text.decode("utf-8", "surrogatepass"), body=body)

    def _damage(self) -> Evidence | None:
        """Describe the damage of an event that was left out, if it was a piece of the answer."""
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
            await self._caller.send(self._watch.error_event(text))
        raise Aborted

    async def _begin(self, head: HttpResponse, *, length: int | None = None) -> None:
        self._is_begun = True
        reply = reply_of(head)
        if length is not None:
            reply.headers.append(("content-length", str(length)))
        used = None if length is None else self._watch.usage
        is_said = self._watch.is_committed or length is not None
        reply.headers.extend(await self._said(is_said, used))
        await self._caller.begin(reply)
        await self._caller.send(bytes(self._held))
        self._held.clear()


def _can_be_read(data: bytes) -> bool:
    """Return whether it is one event, whose data a client can read."""
    event = sse.data_of_one(data)
    return event is not None and read_object(event) is not None


_ERROR_FIELD = re.compile(rb'rror"(?!: ?null\b)')
"""`"error"` as a name, a type or an object, and names such as `"APIError"`."""
_ERROR = re.compile(rb'rror|\.failed|"message"')


_END = re.compile(
    rb'(?:inish_?[rR]eason|stop_reason)"\s*:\s*"|"response\.(?:completed|incomplete|done)"'
)
"""The word for an end, or the event that is one."""


def _may_state_error(data: bytes) -> bool:
    """
    Return whether an event that can be read may be an error, or the end of an answer that is none.
    Cheap: it is asked of each piece.
    """
    return (
        (b'rror"' in data and _ERROR_FIELD.search(data) is not None)
        or b'"message":' in data
        or b'.failed"' in data
        or data.startswith((b"event: error", b"event:error"))
        or _END.search(data) is not None
    )


def masked_from_error(data: bytes, passed: PassedOn) -> bytes:
    """Events of which one is an error: words of the answer before it stay as they are."""
    found = _ERROR.search(data)
    at = 0 if found is None else found.start()
    begin = max(data.rfind(b"\n\n", 0, at), data.rfind(b"\n\r\n", 0, at), 0)
    return data[:begin] + passed.masked(data[begin:])
