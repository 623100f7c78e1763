"""
A model provider on loopback that does what a test tells it to, while the test runs.

    async with provider() as p:
        p.behave("codex", "429", retry_after_s=3600)
        …                                   # a CLI whose base URL is p.url("codex") + "/v1"
        p.behave("codex", "ok")
        await p.called("codex", 2)

The first segment of a path is the *route*: a name for whoever calls, with a behaviour and a log
of its own. What follows is the path of the API: `/chat/completions`, `/responses` (OpenAI),
`/messages` (Anthropic), `/models/NAME:streamGenerateContent` (Google), whatever stands before.

    ok, slow, tool              answers; `tool` has the agent run `command` first
    401 … 529, quota, …         refusals, see `provider_refusals.NAMES`
    hang, reset, empty, garbage  in place of an answer; `refuse` with its status and message
    cut_early                   opened, and ended before the first word of it
    hang_mid, reset_mid, truncated, error_mid, rate_limit_mid   after two words of it
    cut_short, filtered         whole answers that end for a reason of their own
    redirect, html, endless, …  what no reference describes, see `provider_misbehaviour`

A behaviour may hold for one credential or one model only: `p.behave("api", "401", credential="k")`.

By hand: `python -m tests.support.provider --port 8099 codex=429 gemini=ok`
"""

import argparse
import asyncio
import contextlib
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import Struct
from tests.support import provider_refusals, provider_stored
from tests.support.provider_http import MAX_LINE_BYTES, Peer, Request
from tests.support.provider_refusals import Dialect
from tests.support.provider_script import ANSWERS, NAMES, Behaviour, perform

_Place = tuple[str, str | None, str | None]
"""(route, credential, model); None: any."""
LOOPBACK = "127.0.0.1"
HANG_LIMIT_S = 240.0
"""Only something that hangs waits so long."""


class Call(Struct, kw_only=True):
    """One model call, from its request to the end of its answer."""

    route: str
    kind: str
    """main (offers tools), aux, title, router."""
    name: str
    """The behaviour that it met."""
    dialect: Dialect
    model: str
    credential: str
    body: dict[str, Any]
    at: float
    """Unix seconds."""
    monotonic_s: float
    """The same instant on the clock that all processes of the machine share."""
    answered_s: float | None = None
    """Monotonic: when the status line left; None while none did."""

    @property
    def has_failed(self) -> bool:
        return self.name not in ANSWERS


class Provider:
    """Use `provider()`. All methods belong to the event loop that serves it."""

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.port = 0
        self.looks: list[tuple[str, str]] = []
        """(route, credential) of each unbilled request for the list of models."""
        self.lookups: list[tuple[str, str]] = []
        """(route, "METHOD /path?query") of each request for an answer that is stored."""
        self._behaviours: dict[_Place, Behaviour] = {}
        self._met: dict[_Place, int] = defaultdict(int)
        self._models: dict[str, tuple[str, ...]] = {}
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._bugs: list[Exception] = []

    def url(self, route: str) -> str:
        """Without a final slash; add what the API's base URL has, `/v1` say."""
        return f"http://{LOOPBACK}:{self.port}/{route}"

    def behave(
        self,
        route: str,
        *names: str,
        credential: str | None = None,
        model: str | None = None,
        **knobs: Any,
    ) -> None:
        """
        From the next call on. The most particular one counts: a credential's before a model's.

        Args:
            knobs: The other fields of `Behaviour`.
        """
        unknown = set(names) - set(NAMES)
        if unknown or not names:
            raise ValueError(f"unknown behaviour {sorted(unknown)}; known: {', '.join(NAMES)}")
        place = (route, credential, model)
        self._behaviours[place] = Behaviour(names=names, **knobs)
        self._met[place] = 0

    def offer(self, route: str, *models: str) -> None:
        """What its list of models says from now on."""
        self._models[route] = models

    def counts(self, route: str) -> Counter[tuple[str, str]]:
        """Model calls by (credential, model)."""
        return Counter((call.credential, call.model) for call in self.calls(route))

    def calls(self, route: str, *, kind: str | None = None) -> list[Call]:
        return [
            call for call in self.log if call.route == route and (kind is None or call.kind == kind)
        ]

    def first_failure(self, route: str) -> Call | None:
        return next((call for call in self.calls(route) if call.has_failed), None)

    async def called(
        self, route: str, count: int = 1, *, where: Callable[[Call], bool] = lambda _: True
    ) -> list[Call]:
        """Waits until there are `count` such calls. Raises `TimeoutError` after a minute."""

        def found() -> list[Call]:
            return [call for call in self.calls(route) if where(call)]

        async with asyncio.timeout(HANG_LIMIT_S), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()

    async def go_down(self) -> None:
        """Connections break, new ones are refused; nobody else can get the port meanwhile."""
        await self._stop()
        self._held = _bound(self.port)

    async def come_back(self) -> None:
        held, self._held = self._held, None
        assert held is not None, "it is not down"
        await self._listen(held)

    # --- serving ---

    _held: socket.socket | None = None

    async def _listen(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(
            self._connected, sock=listener, limit=MAX_LINE_BYTES
        )

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = tuple(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def close(self) -> None:
        await self._stop()
        if self._held is not None:
            self._held.close()
        if self._bugs:
            raise ExceptionGroup("the provider itself failed", self._bugs)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        peer = Peer(reader, writer)
        try:
            while (request := await peer.request()) is not None:
                if not await self._answer(peer, request):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # asyncio would log the cancellation of a connection as an unhandled exception
            pass
        except Exception as bug:
            self._bugs.append(bug)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, peer: Peer, request: Request) -> bool:
        """False when the connection is over."""
        if request.upgrade:
            await peer.send(426, {"error": {"message": "WebSockets are not spoken here"}})
            return False
        match request.family:
            case "models":
                await self._list_models(peer, request)
            case "count":
                behaviour = self._behaviours.get(self._place(request), Behaviour())
                counted = {"input_tokens": 120, "totalTokens": 120}
                await peer.send(behaviour.count_status, counted)
            case "alive":
                await peer.send(200, {})
            case "stored":
                return await self._look_up(peer, request)
            case "unknown":
                await peer.send(404, {"error": {"message": f"no such path: {request.path}"}})
            case dialect:
                return await self._model_call(peer, request, dialect)
        return True

    def _place(self, request: Request) -> "_Place":
        """Of the behaviour that this request meets."""
        route, credential, model = request.route, request.credential, request.model
        places: tuple[_Place, ...] = (
            (route, credential, model),
            (route, credential, None),
            (route, None, model),
        )
        return next((one for one in places if one in self._behaviours), (route, None, None))

    async def _list_models(self, peer: Peer, request: Request) -> None:
        self.looks.append((request.route, request.credential))
        behaviour = self._behaviours.get(self._place(request), Behaviour())
        if behaviour.names[0] in ("401", "403"):
            limits = provider_refusals.Limits()
            no = provider_refusals.refusal(behaviour.names[0], "chat", "", limits)
            await peer.send(no.status, no.body, no.headers)
            return
        models = [{"id": one, "object": "model"} for one in self._models.get(request.route, ())]
        await peer.send(200, {"object": "list", "data": models})

    async def _look_up(self, peer: Peer, request: Request) -> bool:
        """False when the connection is over."""
        asked = f"{request.method} {request.path}" + (f"?{request.query}" if request.query else "")
        self.lookups.append((request.route, asked))
        behaviour = self._behaviours.get(self._place(request), Behaviour())
        return await provider_stored.perform(peer, request, behaviour.stored)

    async def _model_call(self, peer: Peer, request: Request, dialect: Dialect) -> bool:
        place = self._place(request)
        behaviour = self._behaviours.get(place, Behaviour())
        met = self._met[place]
        name = behaviour.name_of(met, request.body)
        if request.kind != "title":  # which opencode asks for besides, whenever it likes
            self._met[place] += 1
        call = Call(
            route=request.route,
            kind=request.kind,
            name=name,
            dialect=dialect,
            model=request.model,
            credential=request.credential,
            body=request.body,
            at=time.time(),
            monotonic_s=time.monotonic(),
        )
        self.log.append(call)

        def answered() -> None:
            call.answered_s = time.monotonic()

        peer.on_status = answered
        async with self._news:
            self._news.notify_all()
        return await perform(peer, request, dialect, name, behaviour)


def _bound(port: int) -> socket.socket:
    """Bound, not listening: whoever connects is refused."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((LOOPBACK, port))
    return held


@contextlib.asynccontextmanager
async def provider(*, port: int = 0) -> AsyncIterator[Provider]:
    served = Provider()
    await served._listen(_bound(port))
    try:
        yield served
    finally:
        await served.close()


async def _serve(port: int, behaviours: list[str]) -> None:
    async with provider(port=port) as served:
        for each in behaviours:
            route, _, names = each.partition("=")
            served.behave(route, *names.split(","))
        sys.stdout.write(f"http://{LOOPBACK}:{served.port}\n")
        sys.stdout.flush()
        shown = 0
        while True:
            async with served._news:
                await served._news.wait_for(lambda: len(served.log) > shown)  # noqa: B023
            for call in served.log[shown:]:
                sys.stdout.write(
                    f"{call.at:.3f} {call.route} {call.dialect} {call.kind} {call.model} "
                    f"→ {call.name}\n"
                )
            sys.stdout.flush()
            shown = len(served.log)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A model provider that follows a script")
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("behaviour", nargs="*", help="ROUTE=NAME[,NAME…], codex=429,ok say")
    chosen = arguments.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(chosen.port, chosen.behaviour))
