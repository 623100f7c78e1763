"""
Answers that their provider has stored: read again, cancelled, deleted, by their id.

Only the backend that made one knows it, so there is nothing to choose and nothing to fail over to.
Health is neither asked for nor changed: a look at what is stored uses no model, and says nothing
about whether one would answer. A backend that a person has paused is left alone.
"""

import re
from urllib.parse import parse_qs

import anyio
from msgspec import Struct, structs

from fallbackd.backends import passage
from fallbackd.backends.passage import AnswerWatch, Passage
from fallbackd.backends.sieve import Sieve
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.health.record import view
from fallbackd.core.health.scopes import backend_scope
from fallbackd.core.protocol import HttpRequest, HttpResponse
from fallbackd.engine.api import Engine
from fallbackd.engine.exchanges import ExchangeRecord
from fallbackd.fronts.gateway import choosing
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, Refusal, ToCaller, reply_of
from fallbackd.fronts.gateway.deadline import CallerDeadline
from fallbackd.fronts.gateway.makers import Maker, Makers
from fallbackd.fronts.gateway.outgoing import HOP, Outgoing, OutwardCall, next_hop
from fallbackd.fronts.gateway.relay import masked_from_error
from fallbackd.fronts.gateway.room import no_room
from fallbackd.fronts.gateway.sealed import SealedWatch, is_sealed
from fallbackd.ports.passing import PassedOn, PassOn

SILENCE_S = 180.0
NO_CONTENT = 204
_PATH = re.compile(r"/v1/responses/([\w-]{1,200})(/input_items|/cancel)?", re.A)
_METHODS = {None: ("GET", "HEAD", "DELETE"), "/input_items": ("GET", "HEAD"), "/cancel": ("POST",)}


class StoredCall(Struct, frozen=True, kw_only=True):
    method: str
    response: str
    side: str
    """What stands behind `/responses/`."""
    query: str

    @property
    def is_streamed(self) -> bool:
        return parse_qs(self.query).get("stream") == ["true"]


def stored_call(method: str, path: str, query: str) -> StoredCall | None:
    """None: the request is of another kind."""
    found = _PATH.fullmatch(path)
    if found is None or method not in _METHODS[found[2]]:
        return None
    side = found[1] + (found[2] or "")
    return StoredCall(method=method, response=found[1], side=side, query=query)


class StoredAnswers:
    def __init__(self, engine: Engine, pass_on: PassOn, makers: Makers, outgoing: Outgoing) -> None:
        self._engine = engine
        self._pass_on = pass_on
        self._makers = makers
        self._outgoing = outgoing

    async def answer(
        self, call: StoredCall, headers: list[tuple[str, str]], body: bytes, caller: ToCaller
    ) -> None:
        """
        Raises:
            Refusal: Before anything was sent.
            Aborted: In the middle of the answer.
        """
        named = dict(headers)
        deadline = CallerDeadline(named)
        sent = {**passage.forwarded(headers), HOP: next_hop(named)}
        maker = self._maker(call)
        request = self._request(maker, call, sent, body)
        record = self._engine.exchanges.begin(
            self._engine.world.mint(), api="responses", asked=None, at=self._engine.clock.now()
        )
        record.requested = maker.backend
        text = f"{maker.backend} is asked: {call.method} of a response that it has made"
        record.note("Asked", text, at=self._engine.clock.now())
        state = "failed"

        async def work() -> bool:
            passed = await self._pass_on(request)
            try:
                return await _passed_back(passed, call, _Way(caller, deadline, record, maker))
            finally:
                await passed.aclose()

        try:
            if await deadline.bounds(work):
                state = "succeeded"
                record.served_by = maker.backend
                if call.method == "DELETE":
                    self._makers.forget(call.response)
        except anyio.get_cancelled_exc_class():
            state = "cancelled"
            raise
        finally:
            self._engine.exchanges.end(record, state, at=self._engine.clock.now())

    def _maker(self, call: StoredCall) -> Maker:
        """
        Raises:
            Refusal: It is not known, or not to be asked.
        """
        engine = self._engine
        maker = self._makers.find(call.response)
        backends = engine.settings.policy.backends
        if maker is None or not maker.can_be_asked(backends):
            text = f"response {call.response} is not known here: only those that were made through"
            text += " this endpoint, by a backend that is still configured, can be asked for"
            raise Refusal(404, text, "response_not_found")
        backend = backends[maker.backend]
        if choosing.api_of(backend, engine.settings, engine.world.kinds) != "responses":
            text = f"{backend.id} made response {call.response}, and is configured now for an API"
            raise Refusal(404, text + " without stored responses", "response_not_found")
        health = engine.store.peek().health.get(backend_scope(backend.id))
        if view(health, now=engine.clock.now()).state == "paused":
            text = f"{backend.id} made response {call.response} and is paused:"
            text += f" fallbackd-client health resume {backend.id}"
            raise Refusal(400, text, "paused")
        return maker

    def _request(
        self, maker: Maker, call: StoredCall, headers: dict[str, str], body: bytes
    ) -> HttpRequest:
        asked = Passage(
            mode="responses",
            model=None,
            is_streamed=call.is_streamed,
            side=call.side,
            query=call.query,
        )
        outward = OutwardCall(asked=asked, model=None, headers=headers, body=body)
        try:
            request = self._outgoing.request_to(maker.backend, maker.credential, outward)
        except NotConfigured as error:
            raise Refusal(503, f"{maker.backend}: {error}", "not_configured") from error
        # Of a HEAD the caller gets no body either way, and the length of one is not waited for.
        method = "GET" if call.method == "HEAD" else call.method
        return structs.replace(request, method=method)


class _Way(Struct, frozen=True):
    """Back to the caller."""

    caller: ToCaller
    deadline: CallerDeadline
    record: ExchangeRecord
    maker: Maker

    async def begin(self, head: HttpResponse, *, length: int | None = None) -> None:
        self.deadline.begun()
        reply = reply_of(head)
        said = [("x-fallbackd-served-by", str(self.maker.backend))]
        said.append(("x-fallbackd-exchange", self.record.exchange))
        if length is not None:
            said.append(("content-length", str(length)))
        await self.caller.begin(AnswerHead(status=reply.status, headers=reply.headers + said))

    def failed(self, why: str) -> Refusal:
        return Refusal(502, f"{self.maker.backend} did not answer: {why}", "upstream_failed")


async def _head(passed: PassedOn, way: _Way) -> HttpResponse:
    """
    Raises:
        Refusal: There is none that goes back.
    """
    head: HttpResponse | None = None
    with anyio.move_on_after(SILENCE_S) as silence:
        head = await passed.head()
    if head is None:
        raise way.failed("it was silent" if silence.cancelled_caught else _why(passed))
    if 300 <= head.status < 400:
        raise way.failed(f"it redirects ({head.status}), which is not followed")
    return head


async def _passed_back(passed: PassedOn, call: StoredCall, way: _Way) -> bool:
    """Whether it is what was asked for, rather than an error in the words of its provider."""
    head = await _head(passed, way)
    # A provider that does not stream what it has stored answers with the whole of it all the same.
    may_be_stream = call.is_streamed and head.status < 300 and not is_sealed(head)
    goes_on = may_be_stream and way.caller.takes_pieces
    if goes_on and head.headers.get("content-type", "").startswith("text/event-stream"):
        await _streamed(passed, head, way, b"")
        return True
    watch = SealedWatch("responses") if is_sealed(head) else AnswerWatch("responses")
    body = bytearray()
    with anyio.move_on_after(SILENCE_S) as silence:
        await _read_into(body, passed, watch, way, until_stream=goes_on)
    if goes_on and watch.is_stream:
        await _streamed(passed, head, way, bytes(body))
        return True
    end = None if silence.cancelled_caught else passed.exit
    is_short = may_be_stream and not (watch.is_whole or _is_all(watch))
    if is_short or not isinstance(end, HttpResponse) or end.truncated:
        raise way.failed("it broke off")
    why = watch.finish(end, is_side=True)
    is_good = head.status < 300 and head.status != NO_CONTENT
    if why is not None and is_good and not (watch.has_failed or watch.is_stream):
        raise way.failed("what it sends is not a JSON object")
    told = passed.masked(bytes(body)) if watch.has_failed else bytes(body)
    await way.begin(head, length=len(told))
    await way.caller.send(told)
    return head.status < 300


async def _read_into(
    body: bytearray,
    passed: PassedOn,
    watch: AnswerWatch | SealedWatch,
    way: _Way,
    *,
    until_stream: bool,
) -> None:
    """
    Read to the end, or until events are seen to come.

    Raises:
        Refusal: It is longer than any answer, or there is no room for it.
    """
    while (piece := await passed.read()) is not None:
        body += piece
        if len(body) > passage.MAX_WHOLE_BYTES:
            raise way.failed("what it sends is longer than any answer")
        if not way.caller.holds(len(body)):
            raise no_room()
        watch.feed(piece)
        if until_stream and watch.is_stream:
            return


async def _streamed(passed: PassedOn, head: HttpResponse, way: _Way, begun: bytes) -> None:
    """
    The events of an answer, which may still be made.

    Args:
        begun: What has come of it.

    Raises:
        Aborted: They end before it does. No client takes that for a whole answer.
    """
    watch, sieve = AnswerWatch("responses"), Sieve(leaves_out=False)
    await way.begin(head)
    piece: bytes | None = begun
    while piece is not None:
        events = sieve.feed(piece, may_drop=False)
        watch.feed(events)
        await way.caller.send(masked_from_error(events, passed) if watch.has_failed else events)
        piece = None
        with anyio.move_on_after(SILENCE_S):
            piece = await passed.read()
    if not _is_all(watch):
        text = f"{way.maker.backend} broke off its answer"
        await way.caller.send(watch.error_event(text))
        raise Aborted
    await way.caller.send(sieve.rest())


def _is_all(watch: AnswerWatch) -> bool:
    return watch.has_ended or watch.has_failed


def _why(passed: PassedOn) -> str:
    return getattr(passed.exit, "text", "") or "no connection"
