"""A gateway before providers that are functions: what they are sent, and the bytes of an answer."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import httpx2
from msgspec import Struct, structs
from tests.support.running_engine import HANG_S, Agent, agent, engine_in, settings

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import CredentialRef, HttpRequest, HttpResponse
from fallbackd.engine.api import Engine
from fallbackd.fronts.gateway.front import GatewayFront
from fallbackd.ports.transport import PassedOn, TakePiece
from fallbackd.transports.http.transport import HttpTransport


class Told(Struct):
    """An answer of a provider: its head, and its body in pieces."""

    status: int = 200
    pieces: tuple[bytes, ...] = ()
    headers: Mapping[str, str] = MappingProxyType({"content-type": "application/json"})
    is_cut: bool = False
    is_silent: bool = False
    """Not even its head comes."""


def as_json(value: Any, status: int = 200, **headers: str) -> Told:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Told(
        status=status,
        pieces=(json.dumps(value).encode(),),
        headers={"content-type": "application/json", **named},
    )


def as_events(*pieces: bytes, is_cut: bool = False) -> Told:
    return Told(pieces=pieces, headers={"content-type": "text/event-stream"}, is_cut=is_cut)


class _Passed:
    """See `ports.passing.PassedOn`."""

    def __init__(self, told: Told) -> None:
        self._told, self._pieces = told, list(told.pieces)

    async def head(self) -> HttpResponse | None:
        if self._told.is_silent:
            await anyio.sleep_forever()
        return HttpResponse(status=self._told.status, headers=self._told.headers, gone=True)

    async def read(self) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else None

    async def flow(self, take: TakePiece) -> bool:
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    @property
    def exit(self) -> HttpResponse:
        told = self._told
        return HttpResponse(
            status=told.status, headers=told.headers, truncated=told.is_cut, gone=True
        )

    @property
    def stated(self) -> None:
        return None

    def masked(self, data: bytes) -> bytes:
        return data

    async def aclose(self) -> None: ...


Answers = Callable[[HttpRequest], Told]


class Gateway(Struct):
    engine: Engine
    client: httpx2.AsyncClient
    sent: list[tuple[str, HttpRequest]]
    """Backend and request of each call."""

    def bodies(self, name: str) -> list[Any]:
        return [json.loads(request.body) for backend, request in self.sent if backend == name]

    def marks(self) -> dict[str, str]:
        """Reasons of the scopes that are out of rotation."""
        found = self.engine.store.peek().health
        return {
            scope: one.outage.reason.value for scope, one in found.items() if one.outage is not None
        }


def told_backend(
    name: str,
    kind: str = "openai-http",
    *,
    labels: tuple[str, ...] = (),
    options: Mapping[str, Any] = {},
    **more: Any,
) -> Agent:
    keys = tuple(CredentialRef(label=one, source="env", name=one.upper()) for one in labels)
    url = f"http://127.0.0.1:1/{name}"
    model = more.pop("model", f"m-{name}")
    return agent(
        name,
        kind=kind,
        options={"base_url": url, "credentials": keys, "model": model, **options},
        model=model,
        cost="local",
        credentials=labels,
        **more,
    )


@asynccontextmanager
async def gateway(
    place: Path,
    *backends: Agent,
    answers: Mapping[str, Answers] = MappingProxyType({}),
    team: tuple[Entry | str, ...] = (),
    transport: HttpTransport | None = None,
    **more: Any,
) -> AsyncIterator[Gateway]:
    """
    Args:
        answers: Of each backend, by its name.
        team: The chain of that name; empty: the backends in order.
        transport: In place of `answers`: delegations and calls go to the backends' addresses.
        more: Of the settings.
    """
    sent: list[tuple[str, HttpRequest]] = []

    async def pass_on(request: HttpRequest) -> PassedOn:
        name = request.url.split("/")[3]
        sent.append((name, request))
        return _Passed(answers[name](request))

    found = settings(*backends, **more)
    names = team or tuple(one.backend.id for one in backends)
    chain = tuple(Entry(backend=BackendId(one)) if isinstance(one, str) else one for one in names)
    chains = {**found.policy.chains, "team": chain}
    config = structs.replace(found, policy=structs.replace(found.policy, chains=chains))
    labels = {label for one in backends for label in one.backend.credentials}
    environ = {one.upper(): f"key-of-{one}-abcdefgh" for one in labels}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with engine_in(place, config, environ=environ, transport=transport) as engine:
            passing = pass_on if transport is None else transport.pass_on
            front = GatewayFront(engine, passing, token=lambda: "token", allowed_uids=frozenset())
            async with (
                anyio.create_task_group() as tasks,
                httpx2.AsyncClient(
                    base_url=url, headers={"x-api-key": "token"}, timeout=HANG_S, trust_env=False
                ) as client,
            ):
                tasks.start_soon(front.serve, listener)
                yield Gateway(engine=engine, client=client, sent=sent)
                tasks.cancel_scope.cancel()
