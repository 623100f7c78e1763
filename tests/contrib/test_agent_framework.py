"""The example for frameworks that make their calls themselves, against its own simulator."""

import asyncio
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.daemon import HANG_S, InProcess, in_process

from fallbackd.engine import feedback
from fallbackd_client.aio import AsyncClient
from fallbackd_client.client import Client

PLACE = Path(__file__).resolve().parents[2] / "contrib" / "agent-framework"
NAMES = ("guarded", "simulator", "example")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(PLACE))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


class Scene:
    """Providers of a framework, their keys in files, and the daemon's configuration of them."""

    def __init__(self, tmp_path: Path, modules: dict[str, ModuleType]) -> None:
        self.tmp_path = tmp_path
        self.guarded, self.simulator = modules["guarded"], modules["simulator"]
        self.example = modules["example"]
        self.files: dict[str, str] = {}

    def backend(self, name: str, url: str, **keys: str) -> str:
        credentials = []
        for label, key in keys.items():
            path = self.tmp_path / f"{label}.key"
            path.write_text(key)
            path.chmod(0o600)
            self.files[label] = str(path)
            credentials.append(f'{{ label = "{label}", file = "{path}" }}')
        return (
            f'[backends.{name}]\nkind = "openai-http"\nbase_url = "{url}"\nmodel = "large"\n'
            f'provider = "{name}.example"\ncredentials = [{", ".join(credentials)}]\n'
        )

    def provider(self, url: str) -> Any:
        return self.example.Provider(url, self.files, "say pong")

    async def ask(self, daemon: InProcess, url: str, backend: str = "acme") -> Any:
        """One question, by the blocking client in a thread of its own."""

        def blocking() -> Any:
            with Client(daemon.socket, timeout_s=HANG_S) as client:
                send = self.provider(url).send
                return self.guarded.call(client, send, owner="test", backend=backend)

        return await anyio.to_thread.run_sync(blocking)

    async def ask_async(self, daemon: InProcess, send: Any, **wanted: Any) -> Any:
        wanted = wanted or {"backend": "acme"}
        async with AsyncClient(daemon.socket, timeout_s=HANG_S) as client:
            try:
                return await self.guarded.call_async(client, send, owner="test", **wanted)
            except Exception as error:  # what leaves the block comes out as a group
                caught = error
        raise caught


@pytest.fixture
def scene(tmp_path: Path, modules: dict[str, ModuleType]) -> Scene:
    return Scene(tmp_path, modules)


async def test_the_first_key_is_throttled_twice_the_second_revoked_and_the_third_serves_both(
    scene: Scene,
) -> None:
    sim = scene.simulator
    with sim.Simulator({"sk-1": sim.THROTTLED, "sk-2": sim.REVOKED}) as provider:
        config = scene.backend("acme", provider.url, a="sk-1", b="sk-2", c="sk-3")
        async with in_process(scene.tmp_path, config) as daemon:
            answer = await scene.ask(daemon, provider.url)
            assert scene.example.text_of(answer) == "answered with large"
            assert provider.calls == ["sk-1", "sk-1", "sk-2", "sk-3"]
            send = scene.provider(provider.url).send_async
            assert (await scene.ask_async(daemon, send)).is_good
            assert provider.calls[4:] == ["sk-3"]
            health = (await daemon.client.call("health", {"target": "acme", "action": "get"}))[
                "health"
            ]["acme"]
            assert [(one["label"], one["state"]) for one in health["credentials"]] == [
                ("a", "rate_limited"),
                ("b", "broken"),
                ("c", "healthy"),
            ]
            assert health["credentials"][1]["until_at"] is None
            assert "sk-" not in str(health)


async def test_fifty_clients_at_one_wall_hit_it_with_one_real_call(scene: Scene) -> None:
    sim = scene.simulator
    with sim.Simulator({"sk-wall": sim.USED_UP}) as wall, sim.Simulator() as other:
        config = (
            scene.backend("acme", wall.url, wall="sk-wall")
            + scene.backend("spare", other.url, spare="sk-spare")
            + '[chains]\nacme = ["spare"]\n'
        )
        async with in_process(scene.tmp_path, config) as daemon:
            # An outage has ended by the clock: nobody knows whether the wall still stands.
            await feedback.mark(daemon.engine, "acme", reason="crash", ttl_s=0.001, note=None)
            providers = {"acme": scene.provider(wall.url), "spare": scene.provider(other.url)}
            served: Counter[str] = Counter()

            async def send(candidate: Any) -> Any:
                answer = await providers[candidate.backend].send_async(candidate)
                served[candidate.backend] += answer.is_good
                return answer

            async with anyio.create_task_group() as clients:
                for _ in range(50):
                    clients.start_soon(scene.ask_async, daemon, send)
            assert len(wall.calls) == 1
            assert served == {"acme": 0, "spare": 50}
            # And whoever comes later does not touch it either.
            await scene.ask_async(daemon, send)
            assert len(wall.calls) == 1


async def test_fifty_clients_with_nobody_else_are_refused_with_a_time(scene: Scene) -> None:
    sim = scene.simulator
    with sim.Simulator({"sk-wall": sim.USED_UP}) as wall:
        config = scene.backend("acme", wall.url, wall="sk-wall")
        async with in_process(scene.tmp_path, config) as daemon:
            await feedback.mark(daemon.engine, "acme", reason="crash", ttl_s=0.001, note=None)
            send = scene.provider(wall.url).send_async

            async def refused() -> float | None:
                with pytest.raises(scene.guarded.NobodyLeft) as raised:
                    await scene.ask_async(daemon, send)
                return raised.value.retry_at

            found = await asyncio.gather(*(refused() for _ in range(50)))
            assert len(wall.calls) == 1
            assert all(at is not None and at > daemon.engine.clock.now() for at in found)


async def test_the_example_asks_blocking_and_async_and_its_first_key_is_used_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = scene.backend("acme", "http://127.0.0.1:9/v1", a="sk-1", b="sk-2")
    keys = [word for label in "ab" for word in ("--key", f"{label}={scene.files[label]}")]
    async with in_process(scene.tmp_path, config) as daemon:
        argv = ["example.py", "--socket", daemon.socket, "--backend", "acme", *keys]
        monkeypatch.setattr(sys, "argv", argv)
        assert await anyio.to_thread.run_sync(scene.example.main) == 0
        told = capsys.readouterr().out
        assert "blocking: answered with large" in told
        assert "async:    answered with large" in told
        found = await daemon.client.call("health", {"target": "acme", "action": "get"})
        states = [one["state"] for one in found["health"]["acme"]["credentials"]]
        assert states == ["rate_limited", "healthy"]


async def test_a_provider_that_is_not_there_and_a_bug_of_the_framework(scene: Scene) -> None:
    config = scene.backend("acme", "http://127.0.0.1:9/v1", a="sk-1")
    async with in_process(scene.tmp_path, config) as daemon:
        with pytest.raises(scene.guarded.NobodyLeft, match="no backend is available now"):
            await scene.ask(daemon, "http://127.0.0.1:9/v1")
        await feedback.clear(daemon.engine, "acme")

        async def broken(candidate: Any) -> Any:
            raise RuntimeError("a bug")

        with pytest.raises(RuntimeError, match="a bug"):
            await scene.ask_async(daemon, broken)
        found = await daemon.client.call("health", {"target": "acme", "action": "get"})
        assert found["health"]["acme"]["state"] == "healthy"


async def test_the_lease_of_a_caller_names_its_owner_in_health(scene: Scene) -> None:
    config = scene.backend("acme", "http://127.0.0.1:9/v1", a="sk-1")
    async with in_process(scene.tmp_path, config) as daemon:
        await feedback.mark(daemon.engine, "acme", reason="crash", ttl_s=0.001, note=None)
        told = await daemon.client.call("resolve", {"backend": "acme", "lease": True})
        lease = told["lease"]
        assert lease["owner"].startswith("process ")
        (scope,) = (await daemon.client.call("health", {"target": "acme", "action": "get"}))[
            "health"
        ]["acme"]["scopes"]
        assert (scope["trial"], scope["trial_owner"], scope["trial_generation"]) == (
            lease["id"],
            lease["owner"],
            lease["generation"],
        )


CHAINED = '[chains]\nacme = ["other"]\n'


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_next_one_is_of_the_chain_that_was_asked_for(
    scene: Scene, is_async: bool
) -> None:
    names = ("acme", "spare", "other")
    config = "".join(
        scene.backend(name, f"http://127.0.0.1:{at}/v1", **{name: f"sk-{name}"})
        for at, name in enumerate(names, start=9)
    )
    asked: list[str] = []

    def send(candidate: Any) -> Any:
        asked.append(candidate.backend)
        return scene.guarded.Answer(status=200 if candidate.backend == "spare" else 401)

    async def send_async(candidate: Any) -> Any:
        return send(candidate)

    async with in_process(scene.tmp_path, config + CHAINED) as daemon:
        wanted = {"backend": "acme", "chain": ["spare"], "session": "s", "prompt_tokens": 10}
        if is_async:
            answer = await scene.ask_async(daemon, send_async, **wanted)
        else:

            def blocking() -> Any:
                with Client(daemon.socket, timeout_s=HANG_S) as client:
                    return scene.guarded.call(client, send, owner="test", **wanted)

            answer = await anyio.to_thread.run_sync(blocking)
    assert answer.is_good
    assert asked == ["acme", "spare"]


async def test_who_lost_its_lease_goes_on_all_the_same(scene: Scene) -> None:
    config = scene.backend("acme", "http://127.0.0.1:9/v1", a="sk-1") + scene.backend(
        "other", "http://127.0.0.1:10/v1", b="sk-2"
    )
    asked: list[str] = []
    async with in_process(scene.tmp_path, config + CHAINED) as daemon:
        await feedback.mark(daemon.engine, "acme", reason="crash", ttl_s=0.001, note=None)

        async def send(candidate: Any) -> Any:
            asked.append(candidate.backend)
            if candidate.backend == "acme":
                assert candidate.lease is not None
                await feedback.clear(daemon.engine, "acme")
            return scene.guarded.Answer(status=200 if candidate.backend == "other" else 401)

        assert (await scene.ask_async(daemon, send)).is_good
        found = await daemon.client.call("health", {"target": "acme", "action": "get"})
        assert found["health"]["acme"]["state"] == "healthy"
    assert asked == ["acme", "other"]
