"""
Cases of HTTP backends: a configuration file, a provider on loopback, one delegation in a real
engine. The data is `http.json`; the refusals of `classify_cases.json` are read here as answers.
"""

import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.clock import ManualClock
from tests.support.config_file import as_toml
from tests.support.provider import Provider, provider
from tests.support.running_engine import ended, engine_in, until

from fallbackd.backends import ENDPOINTS, KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.config.load import load
from fallbackd.core.health import view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.protocol import Chunk, Evidence, HttpResponse
from fallbackd.core.records import Delegation
from fallbackd.core.views import health_entry
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings, Transports
from fallbackd.engine.requests import NewWork
from fallbackd.transports.http.transport import HttpTransport
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.secrets import SecretSources

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "http.json").read_text("utf-8"))
JUDGED: list[Json] = json.loads(
    (Path(__file__).parents[1] / "classify" / "data" / "classify_cases.json").read_text("utf-8")
)
ANSWERED = [
    one
    for one in JUDGED
    if one["kind"] in ENDPOINTS and (one["evidence"].get("http_status") or 0) >= 400
]
CHARS_PER_TOKEN = 4


def configuration(case: Json, p: Provider) -> Settings:
    """As a user would write it."""
    lines: list[str] = []
    for name, said in case["backends"].items():
        if "command" in said:
            lines += [f"[backends.{name}]", 'kind = "generic-cli"']
            lines += [f"command = {toml(said['command'])}"]
            continue
        route = said.get("at", name)
        if route == name:
            p.behave(route, *said.get("does", ["ok"]), **said.get("knobs", {}))
        for model, names in said.get("does_for", {}).items():
            p.behave(route, *names, model=model)
        table = {
            "kind": said.get("kind", "openai-http"),
            "base_url": p.url(route) + said.get("path", "/v1"),
            "model": said.get("model", "m"),
            # All are on loopback, where in earnest each has a host of its own.
            "provider": f"{route}.example",
            "backoff_base_s": 0,
        }
        keys = ("context_tokens", "stall_s", "credentials")
        table |= {key: said[key] for key in keys if key in said}
        lines += [f"[backends.{name}]", *(f"{key} = {toml(table[key])}" for key in table)]
    lines += ["[chains]", f"p = {toml(case['chain'])}"]
    loaded = load("\n".join(lines), path="config.toml")
    assert loaded.errors == loaded.warnings == ()
    assert load(as_toml(loaded), path="config.toml").policy == loaded.policy
    return Settings(policy=loaded.policy, options=loaded.options)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


async def pass_time(case: Json, engine: Engine, clock: ManualClock, begun: Delegation) -> None:
    """What the case waits for, without waiting."""

    def current() -> Delegation | None:
        return engine.snapshot().active.get(begun.delegation)

    if "waits_s" in case:
        # On a busy machine the wait may be over before it is seen.
        await until(
            lambda: (found := current()) is None or found.state == "waiting" or found.attempts[1:]
        )
        clock.advance(case["waits_s"])
        await engine.look_at_clock()
    if "silent_s" in case:
        first = case["backends"]["p"]["does"][0]
        if first == "hang_mid":
            await until(lambda: (found := current()) and found.attempts[0].answered_at)
            # The last words may still be under way.
            log = engine.world.runs_root / begun.delegation / "1" / "output.log"
            await until(lambda: b"from" in log.read_bytes())
        if "earlier_s" in case:
            clock.advance(case["earlier_s"])
            await engine.look_at_clock()
            await anyio.wait_all_tasks_blocked()
            assert current() is not None
        clock.advance(case["silent_s"])
        await engine.look_at_clock()


@pytest.mark.parametrize("case", CASES, ids=[one["id"] for one in CASES])
async def test_a_case_of_http_backends_is_played_alike(case: Json, tmp_path: Path) -> None:
    clock = ManualClock()
    environ = {"HOME": str(tmp_path), **case.get("environment", {})}
    secrets = SecretSources(environ=environ, now=clock.now)
    transport = HttpTransport(clock=clock, environ=environ, secrets=secrets)
    programs = ProcessTransport(environ={**os.environ, **environ}, now=clock.now)
    async with aclosing(transport), aclosing(programs), provider() as p:
        config = configuration(case, p)
        async with engine_in(
            tmp_path,
            config,
            clock=clock,
            environ=environ,
            transports=Transports(command=programs, http=transport, served=transport),
            secrets=secrets,
        ) as engine:
            prompt = "x" * (case.get("prompt_tokens", 1) * CHARS_PER_TOKEN)
            asked = {"backend": "p", **case.get("ask", {})}
            begun = await engine.delegate(NewWork(prompt=prompt, **asked))
            if "silent_s" in case:
                await p.called("p")
            await pass_time(case, engine, clock, begun)
            found = await ended(engine, begun)
            check(case["is"], found, engine, p)
            if "text" in case:
                assert await engine.text(found) == case["text"]


def check(expected: Json, found: Delegation, engine: Engine, p: Provider) -> None:
    now, policy = engine.clock.now(), engine.settings.policy
    health = engine.snapshot().health
    failures = [None if one.failure is None else one.failure.reason for one in found.attempts]
    first = found.attempts[0].failure if found.attempts else None
    seen: Json = {
        "attempts": [one.backend for one in found.attempts],
        "failures": failures,
        "asked_for": {name: p.calls(name)[-1].model for name in expected.get("asked_for", {})},
        "models": [one.model for one in found.attempts],
        "credentials": [one.credential for one in found.attempts],
        "hops": [[one.from_backend, one.to_backend] for one in found.hops],
        "triggers": [one.trigger for one in found.hops],
        "served_by": found.served_by,
        "state": found.state,
        "has_retry_at": found.retry_at is not None,
        "calls": {name: len(p.calls(name)) for name in expected.get("calls", {})},
        "dialects": {name: p.calls(name)[-1].dialect for name in expected.get("dialects", {})},
        "keys": {name: p.calls(name)[-1].credential for name in expected.get("keys", {})},
        "flags": {key: getattr(first, key) for key in expected.get("flags", {})},
        "shown": {
            name: (entry := health_entry(BackendId(name), engine.snapshot(), policy, now=now))
            and [entry["state"], entry["reason"]]
            for name in expected.get("shown", {})
        },
        "health": {
            scope: view(health.get(ScopeId(scope)), now=now).state
            for scope in expected.get("health", {})
        },
        "verdicts": {
            name: next(one.verdict for one in found.verdicts if one.backend == name)
            for name in expected.get("verdicts", {})
        },
        "until_in_s": {
            name: pytest.approx((outage.until_at or 0) - now, abs=30)
            for name in expected.get("until_in_s", {})
            if (record := health.get(ScopeId(f"backend:{name}"))) is not None
            and (outage := record.outage) is not None
        },
    }
    assert {key: seen[key] for key in expected} == expected


@pytest.mark.parametrize("case", ANSWERED, ids=[one["name"] for one in ANSWERED])
def test_evidence_means_the_same_when_it_comes_as_an_answer(case: Json) -> None:
    kind = KINDS[case["kind"]]
    said = case["evidence"]
    body = said.get("body", said.get("text", ""))
    data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    headers = {name.lower(): value for name, value in (said.get("headers") or {}).items()}
    parser = kind.parser(Options())
    for start in range(0, len(data), 50):
        parser.feed(Chunk("http", data[start : start + 50], 0.0))
    outcome = parser.finish(HttpResponse(status=said["http_status"], headers=headers, gone=True))
    assert isinstance(outcome, Evidence)
    now = case.get("now_at", 1785578400.0)
    found = classify(outcome, kind.rules, now=now, timezone=case.get("timezone"))
    assert found is not None
    expected = dict(case["expect"])
    reasons = expected.pop("reason_one_of", [expected.pop("reason", found.reason)])
    assert found.reason in reasons
    for key, value in expected.items():
        if key == "confidence":
            continue
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        wanted = pytest.approx(value, abs=1.0) if is_number else value
        assert getattr(found, key) == wanted, key
