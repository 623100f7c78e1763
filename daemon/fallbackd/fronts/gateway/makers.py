"""
The makers of answers that later requests name by their id alone, and these requests.

Kept too: which backend has a request whose key it may be sent with again.
"""

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import anyio
import msgspec
import structlog
from msgspec import Struct, structs

from fallbackd.backends import passage
from fallbackd.backends.passage import AnswerWatch, Passage
from fallbackd.backends.sieve import Sieve
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.authority import Authority
from fallbackd.core.health import view
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.protocol import HttpRequest, HttpResponse
from fallbackd.core.scopes import backend_scope
from fallbackd.engine.api import Engine
from fallbackd.engine.exchanges import ExchangeRecord
from fallbackd.fronts.gateway import choosing
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, Refusal, ToCaller, reply_of
from fallbackd.fronts.gateway.incoming import Body
from fallbackd.fronts.gateway.outgoing import HOP, Outgoing, OutwardCall, next_hop
from fallbackd.fronts.gateway.patience import CallerDeadline
from fallbackd.fronts.gateway.relay import SealedWatch, is_sealed, masked_from_error
from fallbackd.fronts.gateway.room import no_room
from fallbackd.lib import atomicfile, privatefile
from fallbackd.ports.transport import PassedOn, PassOn

log = structlog.get_logger("gateway")

KEPT = 10_000
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_KEY_CHARS = 256
_KEY = "idempotency-key "
"""Prefix of the key of a request, in the place of the id of an answer."""


def named_by_key(key: str | None, body: Body) -> str:
    """The name of a request that may be sent again with its key; empty: it has none."""
    if not key:
        return ""
    # Some callers give one key to several requests.
    said = body.plain if body.packed is None else body.packed
    return f"{_KEY}{key[:MAX_KEY_CHARS]} {hashlib.sha256(said or b'').hexdigest()[:16]}"


class Maker(Struct, frozen=True):
    backend: BackendId
    credential: str | None
    """The label of the account that has it."""
    inside: tuple[DelegationId, ...] = ()
    """The delegations inside which it was asked for, as long as the daemon runs."""

    def can_be_asked(self, backends: Mapping[BackendId, Backend]) -> bool:
        """Return whether the account is still configured."""
        found = backends.get(self.backend)
        if found is None or not found.enabled:
            return False
        return self.credential in (None, *found.credentials)

    def __str__(self) -> str:
        return self.backend if self.credential is None else f"{self.backend} ({self.credential})"


class _Line(Struct, frozen=True, omit_defaults=True):
    """One line of the file: the last one about a name counts."""

    name: str
    backend: str = ""
    """Empty: it is not known any more."""
    credential: str | None = None


class Makers:
    """
    A bounded number of them. Another provider does not know the conversation.

    Args:
        path: Where those are kept that outlive the daemon; None: nowhere.
    """

    def __init__(self, path: str | None = None) -> None:
        self._kept: OrderedDict[str, Maker] = OrderedDict()
        self._path = path
        self._lines = 0
        self._is_failing = False
        if path is not None:
            self._read(path)

    def keep(
        self,
        response: str,
        backend: BackendId | None,
        credential: str | None,
        *,
        is_stored: bool = True,
        inside: tuple[DelegationId, ...] = (),
    ) -> None:
        """
        Args:
            is_stored: The provider has it still when this daemon has ended.
        """
        if not response or backend is None:
            return
        maker = Maker(backend, credential, inside)
        if self._kept.get(response) == maker:
            return
        self._kept[response] = maker
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if is_stored:
            self._write(_Line(response, backend, credential))

    def find(self, response: str) -> Maker | None:
        return self._kept.get(response)

    def require_own(self, previous: str | None, asker: Authority) -> None:
        """
        Raises:
            Refusal: It is not known as an answer to the delegation that asks.
        """
        if asker.is_person or previous is None:
            return
        maker = self._kept.get(previous)
        if maker is None or not set(asker.inside) <= set(maker.inside):
            text = "previous_response_id, conversation: your delegation was given no such response;"
            text += " send the whole conversation instead"
            raise Refusal(400, text, "previous_response_not_found")

    def forget(self, response: str) -> None:
        if self._kept.pop(response, None) is not None:
            self._write(_Line(response))

    def bind(self, key: str, backend: BackendId, credential: str | None) -> Maker | None:
        """
        Record which account is sent the request with this key.

        Returns:
            What `free` needs; None: the request has no key, or another call has sent it before.
        """
        if not key:
            return None
        known = self._kept.get(key)
        if known is not None:  # a copy, which the call that has bound the key cannot free
            self._kept[key] = structs.replace(known)
            return None
        self.keep(key, backend, credential)
        return self._kept[key]

    def free(self, key: str, bound: Maker | None) -> None:
        """Forget a key whose request was not begun, unless another call has used it since."""
        if bound is not None and self._kept.get(key) is bound:
            self.forget(key)

    def fitting(
        self,
        previous: str | None,
        entries: Sequence[Entry],
        backends: Mapping[BackendId, Backend],
    ) -> tuple[tuple[Entry, ...], str | None]:
        """
        Keep the entries that can continue an answer, with the account to do it.

        Raises:
            Refusal: None of them can, or it is not known which one.
        """
        maker = self._kept.get(previous or "")
        if maker is None:
            if previous and not previous.startswith(_KEY) and _accounts(entries, backends) > 1:
                text = (
                    f"{previous} was not made through this endpoint, so that it is not known which"
                )
                text += " backend has it; send the whole conversation instead"
                raise Refusal(400, text, "previous_response_not_found")
            return tuple(entries), None
        found = tuple(one for one in entries if one.backend == maker.backend)
        if not found or not maker.can_be_asked(backends):
            raise self.unavailable(previous)
        return found, maker.credential

    def unavailable(self, previous: str | None) -> Refusal:
        maker = self._kept.get(previous or "")
        name = maker or "another backend"
        if previous is not None and previous.startswith(_KEY):
            text = f"idempotency-key: {name} was sent a request with this key, may have begun it,"
            text += " and is not available now; send it with another key to begin it elsewhere"
            return Refusal(503, text, "request_may_have_begun")
        text = f"previous_response_id: {name} made this response and is not available now;"
        text += " send the whole conversation instead"
        return Refusal(400, text, "previous_response_not_found")

    # --- the file --------------------------------------------------------------------------------

    def _read(self, path: str) -> None:
        """A line that cannot be read, the last one of a daemon that was killed say, is skipped."""
        try:
            data = privatefile.read_file(path, max_bytes=MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed(error)
            return
        for raw in data.splitlines():
            try:
                line = msgspec.json.decode(raw, type=_Line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            self._kept.pop(line.name, None)
            if line.backend:
                self._kept[line.name] = Maker(BackendId(line.backend), line.credential)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self._rewrite(path)

    def _write(self, line: _Line) -> None:
        path = self._path
        if path is None:
            return
        if self._lines >= 2 * KEPT:
            self._rewrite(path)
            return
        where, name = os.path.split(path)
        try:
            directory = privatefile.open_directory(where)
            try:
                privatefile.append_line(name, msgspec.json.encode(line), directory=directory)
            finally:
                os.close(directory)
        except OSError as error:
            self._failed(error)
            return
        self._lines += 1
        self._is_failing = False

    def _rewrite(self, path: str) -> None:
        """Write the file again without what is not known any more."""
        lines = [_Line(name, one.backend, one.credential) for name, one in self._kept.items()]
        data = b"".join(msgspec.json.encode(one) + b"\n" for one in lines)
        try:
            atomicfile.write(path, data, durable=False)
        except OSError as error:
            self._failed(error)
        self._lines = len(lines)

    def _failed(self, error: OSError) -> None:
        if not self._is_failing:
            log.warning("gateway.makers_not_kept", path=self._path, error=str(error))
        self._is_failing = True


def _accounts(entries: Sequence[Entry], backends: Mapping[BackendId, Backend]) -> int:
    names = {one.backend for one in entries}
    found = (backends[name] for name in names if name in backends)
    return sum(max(1, len(one.credentials)) for one in found)


# --- stored answers ------------------------------------------------------------------------------
# Answers that their provider has stored: read again, cancelled, deleted, by their id.
#
# Only the backend that made one knows it, so there is nothing to choose and nothing to fail over
# to. Health is neither asked for nor changed: a look at what is stored uses no model, and says
# nothing about whether one would answer. A backend that a person has paused is left alone.

SILENCE_S = 180.0
NO_CONTENT = 204
_PATH = re.compile(r"/v1/responses/([\w-]{1,200})(/input_items|/cancel)?", re.A)
_METHODS = {None: ("GET", "HEAD", "DELETE"), "/input_items": ("GET", "HEAD"), "/cancel": ("POST",)}


class StoredCall(Struct, frozen=True, kw_only=True):
    method: str
    response: str
    side: str
    """The rest of the path behind `/responses/`."""
    query: str

    @property
    def is_streamed(self) -> bool:
        return parse_qs(self.query).get("stream") == ["true"]


def stored_call(method: str, path: str, query: str) -> StoredCall | None:
    """Read a call from its path. None: the request is of another kind."""
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
    """
    Pass the answer back. Returns whether it is what was asked for, rather than an error in the
    words of its provider.
    """
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
    _require_json(watch, end, way)
    told = passed.masked(bytes(body)) if watch.has_failed else bytes(body)
    await way.begin(head, length=len(told))
    await way.caller.send(told)
    return head.status < 300


def _require_json(watch: AnswerWatch | SealedWatch, end: HttpResponse, way: _Way) -> None:
    """
    Raises:
        Refusal: A good answer with content is not of the API.
    """
    why = watch.finish(end, is_side=True)
    is_good = end.status < 300 and end.status != NO_CONTENT
    if why is not None and is_good and not (watch.has_failed or watch.is_stream):
        raise way.failed("what it sends is not a JSON object")


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
