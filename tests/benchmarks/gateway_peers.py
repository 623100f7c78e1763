"""
LiteLLM's proxy, Portkey's gateway and claude-code-router beside ours, in one run: `make
bench-gateway` installs them.

Each stands before the same two models, with its own settings for failover: LiteLLM with fallbacks,
a cool-down as long as ours and one failure allowed; Portkey with the strategy `fallback`.
claude-code-router answers the messages API only, and its version for Node 20 has no setting for
failover: calls are measured, faults are not.
"""

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from msgspec import Struct
from tests.benchmarks.gateway_faults import BUDGET_PASSED, WHAT, ask, config, verdict
from tests.benchmarks.gateway_outage import CONFIG, OUT_S, asking, client_of, flaky, outage
from tests.benchmarks.gateway_wall import FAULTS, host_of, wall
from tests.benchmarks.procfs import children, memory_mib
from tests.benchmarks.table import Row, render
from tests.support.daemon import ROOT, running
from tests.support.gateway import free_port, listening, listens

PEERS = ROOT / ".venv-peers"
LITELLM = PEERS / "bin" / "litellm"
PORTKEY = PEERS / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
ROUTER = PEERS / "node_modules" / "@musistudio" / "claude-code-router" / "dist" / "cli.js"
PAIRS = 200
START_S = 600.0
"""LiteLLM's proxy needs minutes on a machine that does other work."""
LITELLM_KEY = f"sk-{secrets.token_hex(32)}"
"""It does not start without one."""
FLAPPING = "S15"
"""Takes a minute and a half for each; it is in `gateway_faults`."""


class Product(Struct, frozen=True, kw_only=True):
    name: str
    port: int
    pids: tuple[int, ...]
    started_s: float
    headers: Mapping[str, str] = {}
    """For the chain of first and spare."""


def team(upstream: int) -> dict[str, list[tuple[str, str]]]:
    """Model that callers name → models and the addresses where they are."""
    first = ("first", f"http://127.0.0.1:{upstream}/v1")
    return {"team": [first, ("spare", f"http://localhost:{upstream}/v1")]}


def faults(upstream: int) -> dict[str, list[tuple[str, str]]]:
    spare = ("spare", f"http://127.0.0.1:{upstream}/v1")
    return {
        one: [(one, f"http://{host_of(one)}:{upstream}/v1"), spare]
        for one in FAULTS
        if one != FLAPPING
    } | {"spare": [spare]}


def tree(pid: int) -> tuple[int, ...]:
    return (pid, *(below for one in children(pid) for below in tree(one)))


@asynccontextmanager
async def started(
    name: str, command: list[str], port: int, place: Path, env: Mapping[str, str] = {}
) -> AsyncIterator[Product]:
    begun = time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    bare = {"PATH": os.environ["PATH"], "HOME": str(place)}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**bare, **env},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        with anyio.fail_after(START_S):
            while not await listens(port):
                if process.poll() is not None:
                    raise RuntimeError((place / "log").read_text()[-2000:])
                await anyio.sleep(0.02)
        took_s = time.perf_counter() - begun
        yield Product(name=name, port=port, pids=tree(process.pid), started_s=took_s)
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def litellm(chains: dict[str, list[tuple[str, str]]], place: Path) -> AsyncIterator[Product]:
    place.mkdir(parents=True)
    port = free_port()
    listed, fallbacks = [], []
    known: set[str] = set()
    for name, models in chains.items():
        for at, (model, url) in enumerate(models):
            shown = name if at == 0 else model
            if shown in known:
                continue
            known.add(shown)
            params = {"model": f"openai/{model}", "api_base": url, "api_key": "none"}
            listed.append({"model_name": shown, "litellm_params": {**params, "max_retries": 0}})
        if len(models) > 1:
            fallbacks.append({name: [models[1][0]]})
    settings = {
        "model_list": listed,
        "router_settings": {
            "fallbacks": fallbacks,
            "num_retries": 0,
            "allowed_fails": 0,
            "cooldown_time": OUT_S,
            "timeout": 10,
            "stream_timeout": 10,
        },
    }
    path = place / "config.yaml"
    path.write_text(json.dumps(settings))  # which is YAML too
    command = [str(LITELLM), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": LITELLM_KEY}
    async with started("LiteLLM", command, port, place, env) as product:
        yield product


@asynccontextmanager
async def portkey(place: Path) -> AsyncIterator[Product]:
    port = free_port()
    command = ["node", str(PORTKEY), f"--port={port}", "--headless"]
    hosts = ["127.0.0.1", "localhost", *(host_of(fault) for fault in FAULTS)]
    env = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": ",".join(hosts)}
    async with started("Portkey", command, port, place, env) as product:
        yield product


def portkey_headers(models: list[tuple[str, str]]) -> dict[str, str]:
    targets = [
        {
            "provider": "openai",
            "api_key": "none",
            "custom_host": url,
            "override_params": {"model": model},
        }
        for model, url in models
    ]
    strategy = {"strategy": {"mode": "fallback"}, "targets": targets, "request_timeout": 10_000}
    return {"x-portkey-config": json.dumps(strategy), "authorization": "Bearer none"}


@asynccontextmanager
async def router(models: list[tuple[str, str]], place: Path) -> AsyncIterator[Product]:
    port = free_port()
    path = place / ".claude-code-router" / "config.json"
    path.parent.mkdir(parents=True)
    providers = [
        {
            "name": name,
            "api_base_url": f"{url}/chat/completions",
            "api_key": "none",
            "models": [name],
        }
        for name, url in models
    ]
    settings = {"HOST": "127.0.0.1", "PORT": port, "LOG": False, "NON_INTERACTIVE_MODE": True}
    default = {"Router": {"default": ",".join([models[0][0]] * 2)}}
    path.write_text(json.dumps({**settings, **default, "Providers": providers}))
    async with started("claude-code-router", ["node", str(ROUTER), "start"], port, place) as one:
        yield one


async def added(
    product: Product,
    upstream: int,
    headers: Mapping[str, str],
    *,
    model: str = "team",
    path: str = "/v1/chat/completions",
) -> list[Row]:
    """To a call that the second model answers directly, at one connection."""
    async with client_of(upstream, {}) as direct, client_of(product.port, headers) as through:
        calls = asking(direct, "spare"), asking(through, model, path)
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(PAIRS + 20):
            for one, into in zip(calls, took, strict=True):
                begun = time.perf_counter()
                if not await one():
                    raise RuntimeError(f"{product.name} does not answer")
                if number >= 20:
                    into.append(time.perf_counter() - begun)
    p50, p99 = (
        (at(sorted(took[1])) - at(sorted(took[0]))) * 1e3
        for at in (statistics.median, lambda ordered: ordered[int(len(ordered) * 0.99)])
    )
    memory = sum(memory_mib(pid)[0] for pid in product.pids)
    return [
        Row(
            what=f"{product.name}: added to a call, ms",
            measured=f"p50 {p50:.2f}",
            beside=f"p99 {p99:.2f}",
        ),
        Row(
            what=f"{product.name}: started, memory",
            measured=f"{product.started_s:.1f} s",
            beside=f"{memory:.0f} MiB",
        ),
    ]


async def on_the_wall(
    product: Product, tries: Mapping[str, list[float]], headers_of: dict[str, Mapping[str, str]]
) -> list[Row]:
    async with client_of(product.port, headers_of["spare"]) as client:
        well = await ask(client, "spare")
    if not well.is_whole:
        told = f"a stream of a provider that is well: {well.status} {well.error[:60]}"
        return [Row(what=f"{product.name}: faults", measured="–", beside=told)]
    found: dict[str, str] = {}

    async def one_of(fault: str) -> None:
        async with client_of(product.port, headers_of[fault]) as client:
            client.timeout = None  # type: ignore[assignment]
            got = await ask(client, fault)
            found[fault] = verdict(got, tries.get(fault, []), is_alive=True, is_prefilled=False)

    async with anyio.create_task_group() as tasks:
        for fault in FAULTS:
            if fault != FLAPPING:
                tasks.start_soon(one_of, fault)
    by_verdict: dict[str, list[str]] = {}
    for fault in sorted(found):
        by_verdict.setdefault(found[fault], []).append(fault)
    told = "; ".join(f"{word} {' '.join(those)}" for word, those in sorted(by_verdict.items()))
    return [
        Row(
            what=f"{product.name}: faults passed, of 15",
            measured=str(len(by_verdict.get("pass", []))),
            beside=told,
        )
    ]


async def of_ours(place: Path) -> list[Row]:
    rows: list[Row] = []
    at = free_port()
    async with flaky() as one:
        one.is_down = False
        begun = time.perf_counter()
        text = CONFIG.format(at=at, port=one.port, out_s=OUT_S).replace(
            '["first", "spare"]', '["spare", "first"]'
        )
        async with running(place / "calls", text) as daemon:
            await listening(at)
            took_s = time.perf_counter() - begun
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            product = Product(name="fallbackd", port=at, pids=tree(daemon.pid), started_s=took_s)
            rows += await added(product, one.port, headers)
    async with flaky() as one:
        text = CONFIG.format(at=at, port=one.port, out_s=OUT_S)
        async with running(place / "outage", text) as daemon:
            await listening(at)
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            async with client_of(at, {"authorization": f"Bearer {token}"}) as client:
                rows += await outage("fallbackd", one, asking(client, "team"))
    for hold in BUDGET_PASSED:
        at = free_port()
        async with wall() as w, running(place / hold, config(w.port, at, hold=hold)) as daemon:
            await listening(at)
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            product = Product(name=f"fallbackd, {hold}", port=at, pids=(), started_s=0)
            rows += await on_the_wall(product, w.tries, dict.fromkeys((*FAULTS, "spare"), headers))
    return rows


async def of_litellm(place: Path) -> list[Row]:
    rows: list[Row] = []
    headers = {"authorization": f"Bearer {LITELLM_KEY}"}
    async with (
        flaky() as one,
        litellm(team(one.port), place / "outage") as product,
        client_of(product.port, headers) as client,
    ):
        rows += await added(product, one.port, headers, model="spare")
        rows += await outage("LiteLLM", one, asking(client, "team"))
    async with wall() as w, litellm(faults(w.port), place / "wall") as product:
        rows += await on_the_wall(product, w.tries, dict.fromkeys((*FAULTS, "spare"), headers))
    return rows


async def of_portkey(place: Path) -> list[Row]:
    rows: list[Row] = []
    async with portkey(place) as product:
        async with flaky() as one:
            one.is_down = False
            headers = portkey_headers([team(one.port)["team"][1]])
            rows += await added(product, one.port, headers)
        async with flaky() as one:
            headers = portkey_headers(team(one.port)["team"])
            async with client_of(product.port, headers) as client:
                rows += await outage("Portkey", one, asking(client, "team"))
        async with wall() as w:
            headers_of = {name: portkey_headers(models) for name, models in faults(w.port).items()}
            rows += await on_the_wall(product, w.tries, dict(headers_of))
    return rows


async def of_router(place: Path) -> list[Row]:
    path = "/v1/messages"
    async with flaky() as one, router(team(one.port)["team"], place / "outage") as product:
        rows = await added(product, one.port, {}, model="spare,spare", path=path)
        async with client_of(product.port, {}) as client:
            down = asking(client, "first,first", path)
            return rows + await outage(product.name, one, down)


async def main() -> None:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="fallbackd-peers-") as place:
        for name, measure, needs in (
            ("fallbackd", of_ours, None),
            ("LiteLLM", of_litellm, LITELLM),
            ("Portkey", of_portkey, PORTKEY),
            ("claude-code-router", of_router, ROUTER),
        ):
            if wanted and name not in wanted:
                continue
            if needs is not None and not needs.exists():
                rows = [Row(what=f"{name}: is not installed here", measured="–")]
            else:
                print(f"{name} …", file=sys.stderr, flush=True)
                try:
                    rows = await measure(Path(place) / name)
                except (RuntimeError, TimeoutError) as error:
                    rows = [Row(what=f"{name}: {error or 'did not start'}", measured="–")]
            print(render(rows), flush=True)  # one that fails takes no figures of others along
    print(f"\nload {os.getloadavg()[0]:.1f}; S15 is in gateway_faults; {len(WHAT)} faults in all")


if __name__ == "__main__":
    asyncio.run(main())
