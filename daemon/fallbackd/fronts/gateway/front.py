"""The gateway: who may ask, what is asked, and the answer in the words of the caller's API."""

import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog

from fallbackd.backends.passage import MODES, Unreadable
from fallbackd.backends.spec import ApiMode
from fallbackd.core.authority import PERSON, Authority
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import DRAINS, Refused
from fallbackd.fronts.gateway import choosing, encodings, guard, routes
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, Refusal, ToCaller, told
from fallbackd.fronts.gateway.exchange import Exchange
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.keepalive import kept_alive
from fallbackd.fronts.gateway.line import RequestLine
from fallbackd.fronts.gateway.lists import ListCaller
from fallbackd.fronts.gateway.makers import Makers
from fallbackd.fronts.gateway.outgoing import Outgoing
from fallbackd.fronts.gateway.patience import Impatience
from fallbackd.fronts.gateway.pauses import Pauses
from fallbackd.fronts.gateway.room import no_room
from fallbackd.fronts.gateway.server import GatewayServer
from fallbackd.fronts.gateway.settings import Bounds, Rules
from fallbackd.fronts.gateway.stored import StoredAnswers, StoredCall, stored_call
from fallbackd.lib.processes import peer
from fallbackd.ports.passing import PassOn

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
        """For the requests that come from now on."""
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
        is_ours = guard.has_token(request.headers, query, token)
        return await self._authority_at(accepted) if is_ours else None

    def _knows(self, request: HeadIn) -> bool:
        asked = self._asks_as(request, routes.mode_of(request.path))
        return not isinstance(asked, guard.Denied)

    def _asks_as(self, request: HeadIn, mode: ApiMode) -> Authority | guard.Denied:
        return guard.asks_as(
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
        """Of the request, by what was raised."""
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
        asker: Authority | guard.Denied
        if is_open:  # it says nothing that needs protection
            asker = guard.deny(request.method, request.headers, port=request.port) or PERSON
        else:
            asker = self._asks_as(request, mode)
        if isinstance(asker, guard.Denied):
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
        if not guard.is_json(request.headers):
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

    async def _body(self, request: HeadIn, line: RequestLine) -> encodings.Body:
        most = self._limits.max_body_bytes
        given = await line.body(most)
        try:
            if given is None:
                raise encodings.TooLong
            encoding = dict(request.headers).get("content-encoding", "")
            body = encodings.read(given, encoding, max_bytes=most)
        except Unreadable as error:
            raise Refusal(400, str(error), "invalid_body") from error
        except encodings.TooLong as error:
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
        listing = routes.listed_model(request.path)
        if listing is None:
            raise routes.nothing_at(request.path, request.port)
        is_google, named = listing
        engine = self._engine
        modes = routes.listed_for(request.query)
        if is_google:
            modes = frozenset({"generate_content"})
        if not modes:
            raise Refusal(400, f"api is one of {', '.join(sorted(MODES))}", "api")
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
        models = [made(one) for one in ([named] if named else listed)]
        shown: dict[str, Any] = {"models": models}
        if named:
            shown = models[0]
        elif not is_google:
            others = choosing.serves_others(*about)
            shown = {"object": "list", "data": models, "has_more": False}
            shown["serves_other_models"] = others
        body = msgspec.json.encode(shown)
        await _send(line, AnswerHead(status=200, headers=list(JSON)), body)


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
