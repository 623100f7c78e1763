"""The gateway: who may ask, what is asked, and the answer in the words of the caller's API."""

import hashlib
import hmac
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import anyio
import msgspec
import structlog
from msgspec import Struct

from fallbackd.backends.lines import fields, read_object, words
from fallbackd.backends.passage import MAX_WHOLE_BYTES, MODES, Passage, Unreadable, error_event
from fallbackd.backends.spec import ApiMode
from fallbackd.core.authority import PERSON, Authority, meet
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import DRAINS, Refused
from fallbackd.fronts.gateway import choosing, incoming, routes
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, Refusal, ToCaller, told
from fallbackd.fronts.gateway.exchange import Exchange
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.makers import Makers, StoredAnswers, StoredCall, stored_call
from fallbackd.fronts.gateway.outgoing import Outgoing
from fallbackd.fronts.gateway.patience import Bounds, Impatience, Pauses, Rules
from fallbackd.fronts.gateway.room import no_room
from fallbackd.fronts.gateway.server import GatewayServer, RequestLine
from fallbackd.lib.processes import peer
from fallbackd.lib.sse import EventReader, ServerSentEvent
from fallbackd.ports.transport import PassOn

# --- who may ask ---------------------------------------------------------------------------------
# Who may ask. A port on loopback can be reached by every user of the machine, and through a browser
# by every page that it shows.

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Denied(Struct, frozen=True):
    status: int
    message: str


def asks_as(
    method: str,
    headers: Headers,
    query: str,
    *,
    port: int | None,
    asker: Authority | None,
    token: str | None,
    authority_in: Callable[[str], Authority],
) -> Authority | Denied:
    """
    Find what the caller may ask, or why it is not answered.

    Args:
        port: Where it came in; None: through the Unix socket, whose mode protects it.
        asker: What the process at the other end may ask, which no token widens; None: its token
            alone says.
        token: Of a person.
        authority_in: What an attempt may ask.
    """
    if (denied := deny(method, headers, port=port)) is not None:
        return denied
    if asker is not None and (asker.is_person or not asker.inside):
        return asker if asker.is_person else Denied(403, f"refused: you are in {asker.place}")
    given = _tokens(headers, query)
    if not given and asker is None:
        return Denied(401, "no token: `fallbackd-client gateway env` prints how to send it")
    valid = [] if token is None else given
    if any(hmac.compare_digest(one, (token or "").encode()) for one in valid):
        return PERSON if asker is None else asker
    attempts = [found for one in valid if (found := _attempt_of(one, token or "")) is not None]
    if asker is None:
        return _by_token_alone(attempts, authority_in)
    return asker if OF_SERVERS in attempts else _by_both(asker, attempts, authority_in)


def _by_token_alone(
    attempts: list[str], authority_in: Callable[[str], Authority]
) -> Authority | Denied:
    if not attempts:
        return Denied(
            401, "the token is not the one of this endpoint: fallbackd-client gateway env"
        )
    named = meet(map(authority_in, attempts))
    return named if named.inside else Denied(401, f"the token is of no use: {named.why}")


def _by_both(
    asker: Authority, attempts: list[str], authority_in: Callable[[str], Authority]
) -> Authority | Denied:
    named = meet(map(authority_in, attempts)) if attempts else None
    if named is None or not set(named.inside) <= set(asker.inside):
        text = f"you are asking from {asker.place}: send the token of its attempt, which"
        return Denied(401, f"{text} FALLBACKD_GATEWAY_TOKEN holds")
    return meet((asker, named))


def deny(method: str, headers: Headers, *, port: int | None) -> Denied | None:
    """Say why nothing is answered to a web page; None: it is none."""
    named = dict(headers)
    if port is not None and named.get("host", "").lower() not in {
        f"{one}:{port}" for one in _LOCAL
    }:
        return Denied(403, f"the Host header must be 127.0.0.1:{port} or localhost:{port}")
    if "origin" in named:
        return Denied(403, "requests of web pages are refused")
    if method == "OPTIONS":
        return Denied(405, "OPTIONS is not answered: web pages cannot use this endpoint")
    return None


def has_token(headers: Headers, query: str, token: str) -> bool:
    """Return whether any token of ours is sent, for whatever that is worth."""
    return any(
        hmac.compare_digest(one, token.encode()) or _attempt_of(one, token) is not None
        for one in _tokens(headers, query)
    )


OF_SERVERS = ""
"""
Name in place of an attempt: a helper server serves one after the other. It only says that the
process knows the gateway, which gives what those attempts may that it runs.
"""


def token_for(attempt: str, token: str) -> str:
    """
    Make what an attempt sends in place of the person's token. It needs no record, ends with the
    attempt and with the person's token, and does not reveal that one.
    """
    seal = hmac.new(token.encode(), f"attempt {attempt}".encode(), hashlib.sha256).hexdigest()
    return f"fallbackd-{attempt}-{seal}"


def _attempt_of(given: bytes, token: str) -> str | None:
    """The attempt whose token this is; None: of none."""
    attempt = given.decode("ascii", "replace").removeprefix("fallbackd-").rpartition("-")[0]
    return attempt if hmac.compare_digest(given, token_for(attempt, token).encode()) else None


def _tokens(headers: Headers, query: str) -> list[bytes]:
    """All that may be one: a client may send a key of its own beside the token."""
    found: list[str] = []
    for name, value in headers:
        if name in ("x-api-key", "api-key", "x-goog-api-key"):
            found.append(value)
        elif name == "authorization":
            scheme, _, bearer = value.partition(" ")
            found.append(bearer.strip() if scheme.lower() == "bearer" else "")
    if query:
        found += parse_qs(query).get("key", [])
    return [one.encode() for one in found if one]


def is_json(headers: Headers) -> bool:
    kind = dict(headers).get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json"


# --- streams as a list ---------------------------------------------------------------------------
# Streams as one list of JSON, which Google's API sends where a caller does not ask for events.
#
# The provider is asked for events all the same, so that they are judged as those of other callers.
# A stream that breaks off leaves the list without its end.

_ABOUT_EVENTS = frozenset({"content-type", "content-length"})


class _Before:
    """See `ToCaller`. Passes on to the caller behind it what a wrapper does not change."""

    def __init__(self, caller: ToCaller) -> None:
        self._caller = caller

    @property
    def takes_pieces(self) -> bool:
        return self._caller.takes_pieces

    @property
    def has_left(self) -> bool:
        return self._caller.has_left

    def holds(self, size: int) -> bool:
        return self._caller.holds(size)

    async def drained(self) -> None:
        await self._caller.drained()


class ListCaller(_Before):
    """See `ToCaller`. What is no stream of events goes through as it is."""

    def __init__(self, caller: ToCaller) -> None:
        super().__init__(caller)
        self._events = EventReader(max_bytes=MAX_WHOLE_BYTES)
        self._is_list = self._is_begun = False
        self._head: AnswerHead | None = None
        """Head of an answer whose length is stated: the one of the list is not known yet."""

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


# --- keep-alives ---------------------------------------------------------------------------------
# Keep-alives in a streamed answer that is held for long.
#
# Programs leave a server whose head does not come: gemini after a minute, Claude Code and opencode
# after five. The first keep-alive takes the head with it, so that a failure of all backends is
# reported behind it by an event, and our own headers are missing.

_HEAD = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
_COMMENT = b": keepalive\n\n"
_BLANK = b"\n\n"
"""The library of Google's clients reads no comments, and waits for more behind one."""
MAX_SAID_CHARS = 500
_BEGUN = {"id": "", "object": "response", "status": "in_progress", "output": []}


class KeptAlive(_Before):
    """
    See `ToCaller`. The caller of one streamed request.

    Args:
        every_s: Between two keep-alives, and before the first one.
    """

    def __init__(self, caller: ToCaller, mode: ApiMode, *, every_s: float) -> None:
        super().__init__(caller)
        self._mode: ApiMode = mode
        self._every_s = every_s
        self._is_open = False
        self._is_begun = False
        self._unfit = ""
        """The reason why what follows cannot stand behind the head that has left; empty: it can."""

    async def during(self, answer: Callable[[], Awaitable[None]]) -> None:
        """Run `answer`; what it raises is raised, in no group."""
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
        await super().drained()


def kept_alive(caller: ToCaller, asked: Passage, *, every_s: float | None) -> KeptAlive | None:
    """Make a caller that is kept alive. None: its answer comes in one piece, or none is wanted."""
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


# --- the front -----------------------------------------------------------------------------------

log = structlog.get_logger("gateway")

JSON = [("content-type", "application/json")]


class GatewayFront:
    """
    Args:
        token: What a person sends over TCP; asked for with each request, since it may change.
        allowed_uids: Whose processes may use the Unix socket.
        authority_of: What the process at the other end of such a connection may ask.
        authority_at: The same of TCP; None: it is no process of an attempt.
        makers: The file of who made which response; None: known until the daemon ends.
    """

    def __init__(
        self,
        engine: Engine,
        pass_on: PassOn,
        *,
        token: Callable[[], str | None],
        allowed_uids: frozenset[int],
        authority_of: Callable[[socket.socket], Authority] = lambda _: PERSON,
        authority_at: Callable[[socket.socket], Awaitable[Authority | None]] | None = None,
        makers: str | None = None,
    ) -> None:
        self._engine = engine
        self._pass_on = pass_on
        self._token = token
        self._rules, self._limits = Rules(), Bounds()
        self._allowed_uids = allowed_uids
        self._authority_of, self._authority_at = authority_of, authority_at
        self._pauses = Pauses()
        self._impatience = Impatience()
        self._choices = choosing.Choices()
        self._makers = Makers(makers)
        self._outgoing = Outgoing(engine)
        self._stored = StoredAnswers(engine, pass_on, self._makers, self._outgoing)
        self._server = GatewayServer(
            self.answer, allows=self._allows, knows=self._knows, looks=self._looks
        )

    def configure(self, rules: Rules, limits: Bounds) -> None:
        """Change the rules of the requests that come from now on."""
        self._rules, self._limits = rules, limits
        self._server.room.most_bytes = limits.max_memory_bytes

    async def serve(self, listener: socket.socket) -> None:
        await self._server.serve(listener)

    def _allows(self, accepted: socket.socket) -> Authority | None:
        try:
            is_ours = peer(accepted).uid in self._allowed_uids
        except OSError:
            return None
        return self._authority_of(accepted) if is_ours else None

    async def _looks(self, accepted: socket.socket, request: HeadIn) -> Authority | None:
        """Only with a token that is ours: strangers cost nothing."""
        token = None if self._authority_at is None else self._token()
        if self._authority_at is None or token is None:
            return None
        query = _query(request, routes.mode_of(request.path))
        is_ours = has_token(request.headers, query, token)
        return await self._authority_at(accepted) if is_ours else None

    def _knows(self, request: HeadIn) -> bool:
        asked = self._asks_as(request, routes.mode_of(request.path))
        return not isinstance(asked, Denied)

    def _asks_as(self, request: HeadIn, mode: ApiMode) -> Authority | Denied:
        return asks_as(
            request.method,
            request.headers,
            _query(request, mode),
            port=request.port,
            asker=request.asker,
            token=self._token() if request.asker is None or request.asker.inside else None,
            authority_in=lambda attempt: self._engine.authority_of((attempt,)),
        )

    async def answer(self, request: HeadIn, line: RequestLine) -> None:
        mode = routes.mode_of(request.path)
        try:
            await self._answer(request, line, mode)
        except (Aborted, anyio.EndOfStream):
            raise
        except Exception as error:
            await _tell(line, mode, self._refusal(error, request))

    def _refusal(self, error: Exception, request: HeadIn) -> Refusal:
        """Make the refusal of a request from what was raised."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, Refused):
            at = error.rejection.data.get("retry_at")
            wait_s = None if at is None else max(1.0, float(at) - self._engine.clock.now())
            return Refusal(503, error.rejection.message, "refused", retry_after=wait_s)
        # A defect of ours is no reason to leave a caller without a word.
        log.error("gateway.answer_failed", path=request.path, exc_info=error)
        text = "the gateway failed on this request; the log of the daemon says why"
        return Refusal(500, text, "internal")

    async def _answer(self, request: HeadIn, line: RequestLine, mode: ApiMode) -> None:
        is_get = request.method in ("GET", "HEAD")
        is_open = is_get and request.path in (*routes.ALIVE, routes.HEALTH)
        asker: Authority | Denied
        if is_open:  # it says nothing that needs protection
            asker = deny(request.method, request.headers, port=request.port) or PERSON
        else:
            asker = self._asks_as(request, mode)
        if isinstance(asker, Denied):
            raise Refusal(asker.status, asker.message, "denied")
        if request.is_one_too_many:
            text = "as many callers as the gateway takes at once are being answered; try again"
            raise Refusal(503, text, "busy", retry_after=1.0)
        if is_open:
            is_well = request.path != routes.HEALTH or not self._engine.is_draining
            await _send(line, AnswerHead(status=200 if is_well else 503, headers=[]), b"")
            return
        stored = stored_call(request.method, request.path, request.query)
        if stored is not None:
            await self._stored_one(stored, request, line, asker)
            return
        if is_get:
            await self._looked_up(request, line)
            return
        if request.method != "POST":
            raise Refusal(405, f"{request.method} is not answered here", "method")
        route = routes.route_of(request.path)
        if route is None:
            raise routes.nothing_at(request.path, request.port)
        if not is_json(request.headers):
            raise Refusal(415, "the Content-Type must be application/json", "content_type")
        await self._exchanged(route, request, line, mode, asker)

    async def _stored_one(
        self, call: StoredCall, request: HeadIn, line: RequestLine, asker: Authority
    ) -> None:
        if not asker.is_person:
            text = "only a person may ask for stored responses; you are asking from"
            raise Refusal(403, f"{text} {asker.place}", "denied")
        given = await line.body(self._limits.max_body_bytes)
        if given is None:
            raise self._too_long()
        await self._stored.answer(call, request.headers, given, line)

    async def _exchanged(
        self,
        route: routes.Destination,
        request: HeadIn,
        line: RequestLine,
        mode: ApiMode,
        asker: Authority,
    ) -> None:
        """Answer a call by the first backend that can."""
        body = await self._body(request, line)
        if self._engine.is_draining:
            raise Refusal(503, DRAINS, "draining")
        try:
            asked = routes.asked(route, request, body.plain)
        except Unreadable as error:
            raise Refusal(400, str(error), "invalid_body") from error
        listed = ListCaller(line) if asked.is_listed else None
        kept = kept_alive(listed or line, asked, every_s=self._rules.keepalive_s)
        caller = kept or listed or line
        exchange = Exchange(
            self._engine,
            self._pass_on,
            self._rules,
            asked,
            asker=asker,
            headers=request.headers,
            body=body,
            caller=caller,
            pauses=self._pauses,
            impatience=self._impatience,
            choices=self._choices,
            makers=self._makers,
            outgoing=self._outgoing,
        )
        try:
            await (exchange.run() if kept is None else kept.during(exchange.run))
            if listed is not None:
                await listed.end()
        except (Aborted, anyio.EndOfStream):
            raise
        except Exception as error:
            refusal = self._refusal(error, request)
            refusal.said = exchange.said()
            await _tell(caller, mode, refusal)

    async def _body(self, request: HeadIn, line: RequestLine) -> incoming.Body:
        most = self._limits.max_body_bytes
        given = await line.body(most)
        try:
            if given is None:
                raise incoming.TooLong
            encoding = dict(request.headers).get("content-encoding", "")
            body = incoming.read_body(given, encoding, max_bytes=most)
        except Unreadable as error:
            raise Refusal(400, str(error), "invalid_body") from error
        except incoming.TooLong as error:
            raise self._too_long() from error
        if body.packed is not None and not line.holds_body(len(body.plain or b"")):
            raise no_room()
        return body

    def _too_long(self) -> Refusal:
        most = self._limits.max_body_bytes // (1024 * 1024)
        return Refusal(413, f"the body is longer than {most} MiB", "too_large")

    async def _looked_up(self, request: HeadIn, line: RequestLine) -> None:
        if "upgrade" in dict(request.headers) and request.path == "/v1/responses":
            # Codex then asks over HTTP at once, without its five tries.
            raise Refusal(426, "this endpoint speaks HTTP only", "upgrade")
        listing = routes.listed_model(request)
        if listing is None:
            raise routes.nothing_at(request.path, request.port)
        is_google, named = listing
        modes = routes.listed_for(request.query)
        if is_google:
            modes = frozenset({"generate_content"})
        if not modes:
            raise Refusal(400, f"api is one of {', '.join(sorted(MODES))}", "api")
        body = msgspec.json.encode(self._models(modes, named, is_google=is_google))
        await _send(line, AnswerHead(status=200, headers=list(JSON)), body)

    def _models(self, modes: frozenset[ApiMode], named: str, *, is_google: bool) -> dict[str, Any]:
        """
        Make a list of the models, or the one that is named.

        Raises:
            Refusal: There is none of that name.
        """
        engine = self._engine
        about = engine.settings, engine.world.kinds, modes
        listed = choosing.names(*about)
        vectors = choosing.embeddings(*about) if is_google or modes == MODES else []
        listed = list(dict.fromkeys([*listed, *vectors]))
        if named and named not in listed:
            text = f"no chain, role, backend or model is named {named}: GET {routes.MODELS}"
            raise Refusal(404, text, "model_not_found")
        made = partial(_google_model, vectors=vectors)
        if not is_google:
            made = partial(_model, at=engine.started_at)
        if named:
            return made(named)
        models = [made(one) for one in listed]
        if is_google:
            return {"models": models}
        others = choosing.serves_others(*about)
        return {
            "object": "list",
            "data": models,
            "has_more": False,
            "serves_other_models": others,
        }


def _query(request: HeadIn, mode: ApiMode) -> str:
    """Only Google's clients put a key into the address, and it goes to no provider there."""
    return request.query if mode == "generate_content" else ""


def _model(name: str, *, at: float) -> dict[str, Any]:
    """A model in the shapes of OpenAI and of Anthropic at once."""
    day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": int(at),
        "created_at": day,
        "owned_by": "fallbackd",
    }


def _google_model(name: str, *, vectors: list[str]) -> dict[str, Any]:
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    if name in vectors:
        methods = ["embedContent", "batchEmbedContents"]
    return {
        "name": f"models/{name}",
        "displayName": name,
        "supportedGenerationMethods": methods,
    }


async def _tell(line: ToCaller, mode: ApiMode, refusal: Refusal) -> None:
    reply, body = told(mode, refusal)
    await _send(line, reply, body)


async def _send(line: ToCaller, reply: AnswerHead, body: bytes) -> None:
    headers = [(name, value) for name, value in reply.headers if name != "content-length"]
    headers.append(("content-length", str(len(body))))
    await line.begin(AnswerHead(status=reply.status, headers=headers))
    await line.send(body)
