"""Whether a backend that was waited for may still be asked when its time has come."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx2
import msgspec
import pytest
from msgspec import Struct, structs
from tests.support.daemon import HANG_S
from tests.support.running_engine import Agent, agent, engine_in, settings

from fallbackd.backends.passage import Passage
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import CredentialRef, HttpRequest, HttpResponse
from fallbackd.engine import feedback
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings
from fallbackd.fronts.gateway import patience
from fallbackd.fronts.gateway.front import GatewayFront
from fallbackd.fronts.gateway.outgoing import Outgoing, OutwardCall
from fallbackd.ports.transport import PassedOn, TakePiece

MESSAGE = {"role": "assistant", "content": "said"}
ANSWER = {"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
LIMITED = {"error": {"message": "slow down", "type": "rate_limit_error"}}
ASKED = {"model": "team", "messages": [{"role": "user", "content": "say it"}]}
KEYS = tuple(CredentialRef(label=one, source="env", name=one.upper()) for one in ("k1", "k2"))


class Answered:
    """See `ports.passing.PassedOn`."""

    def __init__(self, head: HttpResponse, body: object) -> None:
        self._head, self._pieces = head, [msgspec.json.encode(body)]

    async def head(self) -> HttpResponse | None:
        return self._head

    async def read(self) -> bytes | None:
        return self._pieces.pop() if self._pieces else None

    async def flow(self, take: TakePiece) -> bool:
        while (data := await self.read()) is not None:
            take(data)
        return True

    @property
    def exit(self) -> HttpResponse:
        return self._head

    @property
    def stated(self) -> None:
        return None

    def masked(self, data: bytes) -> bytes:
        return data

    async def aclose(self) -> None: ...


def one_of(name: str, *keys: CredentialRef) -> Agent:
    options = {"base_url": f"http://127.0.0.1:1/{name}", "credentials": keys}
    labels = tuple(one.label for one in keys)
    return agent(
        name, kind="openai-http", options=options, model="m", cost="local", credentials=labels
    )


def configured(*backends: Agent) -> Settings:
    found = settings(*backends, defaults={"patience_s": 60})
    team = tuple(found.policy.chains["*"])
    chains = {**found.policy.chains, "team": team}
    return structs.replace(found, policy=structs.replace(found.policy, chains=chains))


class Scene(Struct):
    engine: Engine
    client: httpx2.AsyncClient
    asked: list[tuple[str, str | None]]
    """Backend and label of the credential of each call."""

    async def ask(self, **headers: str) -> httpx2.Response:
        return await self.client.post("/v1/chat/completions", json=ASKED, headers=headers)


@asynccontextmanager
async def scene(
    place: Path, monkeypatch: pytest.MonkeyPatch, waits: Callable[[Scene], Awaitable[None]]
) -> AsyncIterator[Scene]:
    """
    A gateway before `one`, which asks its first caller to come back later, and `two`.

    Args:
        waits: Done while a pause lasts, which takes no time.
    """
    asked: list[tuple[str, str | None]] = []
    now_s = 0.0

    async def pass_on(request: HttpRequest) -> PassedOn:
        name = "one" if "/one/" in request.url else "two"
        asked.append((name, None if request.credential is None else request.credential.label))
        if len(asked) == 1:
            return Answered(
                HttpResponse(status=429, headers={"retry-after": "30"}, gone=True), LIMITED
            )
        return Answered(HttpResponse(status=200, gone=True), ANSWER)

    async def sleep_until(until: float) -> None:
        nonlocal now_s
        await waits(found)
        now_s = until

    time = SimpleNamespace(current_time=lambda: now_s, sleep_until=sleep_until)
    monkeypatch.setattr(patience, "anyio", time)
    config = configured(one_of("one", *KEYS[:1]), one_of("two"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environ = {"K1": "key-1-abcdefgh", "K2": "key-2-abcdefgh"}
        async with engine_in(place, config, environ=environ) as engine:
            front = GatewayFront(engine, pass_on, token=lambda: "token", allowed_uids=frozenset())
            async with (
                anyio.create_task_group() as tasks,
                httpx2.AsyncClient(
                    base_url=url, headers={"x-api-key": "token"}, timeout=HANG_S, trust_env=False
                ) as client,
            ):
                found = Scene(engine=engine, client=client, asked=asked)
                tasks.start_soon(front.serve, listener)
                yield found
                tasks.cancel_scope.cancel()


async def nothing(scene: Scene) -> None: ...


async def paused(scene: Scene) -> None:
    await feedback.pause(scene.engine, "one", note=None)


async def credential_paused(scene: Scene) -> None:
    await feedback.pause(scene.engine, "credential:one/k1", note=None)


async def disabled(scene: Scene) -> None:
    one = one_of("one", *KEYS[:1])
    off = structs.replace(one, backend=structs.replace(one.backend, enabled=False))
    await scene.engine.set_settings(configured(off, one_of("two")))


async def removed(scene: Scene) -> None:
    await scene.engine.set_settings(configured(one_of("two")))


async def without_its_key(scene: Scene) -> None:
    await scene.engine.set_settings(configured(one_of("one"), one_of("two")))


async def with_another_key(scene: Scene) -> None:
    await scene.engine.set_settings(configured(one_of("one", KEYS[1]), one_of("two")))


CHANGES = (paused, credential_paused, disabled, removed, without_its_key, with_another_key)


async def test_it_is_asked_again_where_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, monkeypatch, nothing) as s:
        assert (await s.ask()).headers["x-fallbackd-served-by"] == "one"
        assert s.asked == [("one", "k1")] * 2


@pytest.mark.parametrize("change", CHANGES)
async def test_it_is_not_asked_again_once_it_may_not_be_used_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Scene], Awaitable[None]]
) -> None:
    async with scene(tmp_path, monkeypatch, change) as s:
        answer = await s.ask()
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert s.asked == [("one", "k1"), ("two", None)]


@pytest.mark.parametrize("change", CHANGES)
async def test_its_first_failure_goes_back_where_no_other_is_to_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Scene], Awaitable[None]]
) -> None:
    async with scene(tmp_path, monkeypatch, change) as s:
        answer = await s.ask(**{"x-fallbackd-failover": "0"})
        assert (answer.status_code, answer.json()) == (429, LIMITED)
        assert s.asked == [("one", "k1")]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_that_waits_with_others_asks_the_next_one_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Scene], Awaitable[None]]
) -> None:
    is_waiting, is_changed = anyio.Event(), anyio.Event()
    answers: list[httpx2.Response] = []
    waiting: list[Scene] = []

    async def ask(scene: Scene) -> None:
        answers.append(await scene.ask())

    async def meanwhile(scene: Scene) -> None:
        waiting.append(scene)
        if len(waiting) == 1:
            tasks.start_soon(ask, scene)
            await is_waiting.wait()
            await change(scene)
            is_changed.set()
        is_waiting.set()
        await is_changed.wait()

    async with scene(tmp_path, monkeypatch, meanwhile) as s:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, s)
        assert [one.status_code for one in answers] == [200, 200]
        assert len(waiting) == 2
        assert s.asked.count(("one", "k1")) == 1


@pytest.mark.parametrize("keys", [(), KEYS[1:]])
async def test_no_call_leaves_without_the_login_that_was_chosen_for_it(
    tmp_path: Path, keys: tuple[CredentialRef, ...]
) -> None:
    asked = Passage(mode="chat_completions", model="m", is_streamed=False)
    call = OutwardCall(asked=asked, model="m", headers={}, body=b"{}")
    async with engine_in(tmp_path, configured(one_of("one", *KEYS[:1]))) as engine:
        outgoing = Outgoing(engine)
        assert outgoing.request_to(BackendId("one"), "k1", call).credential == KEYS[0]
        await engine.set_settings(configured(one_of("one", *keys)))
        with pytest.raises(NotConfigured, match="credential k1 of one is not configured any more"):
            outgoing.request_to(BackendId("one"), "k1", call)
