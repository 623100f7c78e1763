"""Credentials in an engine: chosen by the core, found at the edge, looked at before their use."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.clock import ManualClock
from tests.support.running_engine import Agent, agent, engine_in, settings, work
from tests.support.scripts import script

from fallbackd.core.health import view
from fallbackd.core.ids import ScopeId
from fallbackd.core.protocol import CredentialRef
from fallbackd.core.records import Delegation
from fallbackd.engine.api import Engine
from fallbackd.stores.writes import encode
from fallbackd.transports.secrets import SecretSources

BY_KEY = """cat >/dev/null
echo "$ACME_KEY" >> "$KEYS_SEEN"
case "$ACME_KEY" in
  *busy*) echo 'Error: 429 Too Many Requests' >&2; exit 1 ;;
  *dead*) echo 'Error: 401 token_revoked: the token has been revoked' >&2; exit 1 ;;
  *) echo 'the answer of a good key' ;;
esac"""


class Scene:
    """A program that three credentials are for, and whom it was called with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.environ = {**os.environ, "HOME": str(path), "KEYS_SEEN": str(path / "seen")}

    def variable(self, label: str, value: str | None) -> CredentialRef:
        name = f"KEY_{label.upper()}"
        if value is not None:
            self.environ[name] = value
        return CredentialRef(label=label, source="env", name=name, into="ACME_KEY")

    def file(self, label: str, value: str) -> CredentialRef:
        path = self.path / f"{label}.key"
        path.write_text(value)
        path.chmod(0o600)
        return CredentialRef(label=label, source="file", name=str(path), into="ACME_KEY")

    def acme(self, *refs: CredentialRef, **more: Any) -> Agent:
        return agent(
            "acme",
            script(self.path, "acme", BY_KEY),
            options={"credentials": refs},
            credentials=tuple(one.label for one in refs),
            **more,
        )

    def engine(self, *agents: Agent) -> Any:  # an async context manager of an Engine
        return engine_in(
            self.path,
            settings(*agents),
            clock=self.clock,
            environ=self.environ,
            secrets=SecretSources(environ=self.environ, now=self.clock.now),
        )

    @property
    def seen(self) -> list[str]:
        path = self.path / "seen"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def used(done: Delegation) -> list[str | None]:
    return [one.credential for one in done.attempts]


def state(engine: Engine, label: str) -> str:
    health = engine.snapshot().health.get(ScopeId(f"credential:acme/{label}"))
    return view(health, now=engine.clock.now()).state


async def test_the_first_is_throttled_twice_the_second_revoked_and_the_third_answers(
    scene: Scene,
) -> None:
    refs = (
        scene.variable("a", "sk-busy-1"),
        scene.variable("b", "sk-dead-2"),
        scene.variable("c", "sk-good-3"),
    )
    async with scene.engine(scene.acme(*refs)) as engine:
        done = await work(engine)
        assert (done.state, used(done), done.hops) == ("succeeded", ["a", "a", "b", "c"], ())
        assert [state(engine, one) for one in "abc"] == ["rate_limited", "broken", "healthy"]
        assert used(await work(engine)) == ["c"]
        kept = b"".join(
            encode(one) for one in (*engine.snapshot().health.values(), *await engine.delegations())
        )
        assert b"sk-" not in kept
        story = await engine.story(done.delegation)
        assert "sk-" not in str(story)
    assert scene.seen == ["sk-busy-1", "sk-busy-1", "sk-dead-2", "sk-good-3", "sk-good-3"]


async def test_a_missing_variable_costs_no_attempt(scene: Scene) -> None:
    refs = (scene.variable("a", None), scene.variable("b", "sk-good"))
    async with scene.engine(scene.acme(*refs)) as engine:
        assert used(await work(engine)) == ["b"]
        health = engine.snapshot().health[ScopeId("credential:acme/a")]
        assert health.outage is not None
        assert health.outage.reason == "not_configured"
        assert "KEY_A is not set" in (health.outage.detail or "")


@pytest.mark.parametrize(
    ("text", "word", "reason", "words"),
    [
        ("", "not_configured", "not_configured", "is empty"),
        ("{old}", "broken", "auth", "has expired"),
    ],
)
async def test_an_empty_or_expired_file_is_passed_over_and_said(
    scene: Scene, text: str, word: str, reason: str, words: str
) -> None:
    old = json.dumps({"access": "sk-good-1", "expires_at": scene.clock.now() - 10})
    place = scene.file("a", text.replace("{old}", old))
    bad = structs.replace(place, field="access" if text else None)
    async with scene.engine(scene.acme(bad, scene.variable("b", "sk-good-2"))) as engine:
        done = await work(engine)
        assert (done.state, used(done)) == ("succeeded", ["b"])
        health = engine.snapshot().health[ScopeId("credential:acme/a")]
        assert health.outage is not None
        assert health.outage.reason == reason
        assert words in (health.outage.detail or "")
    async with scene.engine(scene.acme(bad)) as engine:
        done = await work(engine)
        [verdict] = done.verdicts
        assert (done.state, used(done)) == ("refused", [])
        assert (verdict.verdict, verdict.reason, verdict.credential) == (word, reason, "a")
        assert words in (verdict.detail or "")
    assert scene.seen == ["sk-good-2"]


async def test_one_that_vanishes_between_look_and_use_is_left_for_the_next(scene: Scene) -> None:
    refs = (scene.file("a", "sk-good-1"), scene.variable("b", "sk-good-2"))
    config = settings(scene.acme(*refs))
    async with engine_in(
        scene.path,
        config,
        clock=scene.clock,
        environ=scene.environ,  # nobody looks before
    ) as engine:
        os.unlink(scene.path / "a.key")
        done = await work(engine)
        assert used(done) == ["a", "b"]
        first = done.attempts[0].failure
        assert first is not None
        assert (first.reason, first.detail) == ("not_configured", "no_secret")
        assert state(engine, "a") == "broken"
        assert state(engine, "b") == "healthy"


async def test_a_key_that_was_replaced_on_disk_is_used_again_and_was_never_written(
    scene: Scene,
) -> None:
    refs = (scene.file("a", "sk-dead"), scene.variable("b", "sk-good-2"))
    async with scene.engine(scene.acme(*refs)) as engine:
        assert used(await work(engine)) == ["a", "b"]
        assert used(await work(engine)) == ["b"]
        scene.clock.advance(30 * 86_400)
        assert used(await work(engine)) == ["b"]  # a revoked one is dead however long it takes
        before = scene.file("b2", "sk-good-1").name
        os.replace(before, scene.path / "a.key")
        done = await work(engine)
        assert (used(done), done.attempts[0].trial) == (["a"], True)
        assert (scene.path / "a.key").read_text() == "sk-good-1"
        assert state(engine, "a") == "healthy"


async def test_a_file_that_comes_back_is_used_without_asking_the_provider_first(
    scene: Scene,
) -> None:
    refs = (scene.file("a", "sk-good-1"), scene.variable("b", "sk-good-2"))
    os.rename(scene.path / "a.key", scene.path / "away")
    async with scene.engine(scene.acme(*refs)) as engine:
        assert used(await work(engine)) == ["b"]
        os.rename(scene.path / "away", scene.path / "a.key")
        done = await work(engine)
        assert (used(done), done.attempts[0].trial) == (["a"], False)


async def test_a_program_inherits_none_of_the_keys_that_were_not_chosen(scene: Scene) -> None:
    refs = (scene.variable("a", "sk-good-1"), scene.variable("b", "sk-good-2"))
    seen = script(scene.path, "printer", 'cat >/dev/null; echo "[$ACME_KEY][$KEY_A][$KEY_B]"')
    printer = agent("acme", seen, options={"credentials": refs}, credentials=("a", "b"))
    async with scene.engine(printer) as engine:
        done = await work(engine)
        assert await engine.text(done) == "[sk-good-1][][]"
