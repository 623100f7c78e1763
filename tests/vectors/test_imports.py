"""
Cases of configurations of other programs: what is taken of them, and what is done with it then.

The data is `imports.json`. What was imported lies under a file of the user's own (`own`).
"""

import json
import os
import tomllib
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from tests.support.agents import program
from tests.support.clock import ManualClock
from tests.support.provider import Provider, provider
from tests.support.running_engine import engine_in, tried, work

from fallbackd.api.host import ImportedText
from fallbackd.app.configuration import import_text
from fallbackd.config.files import load_file
from fallbackd.config.load import Loaded
from fallbackd.core.events import ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings, Transports
from fallbackd.transports.http.transport import HttpTransport
from fallbackd.transports.secrets import SecretSources

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "imports.json").read_text("utf-8"))


class Given:
    """The places and variables of a case, and what was made of them."""

    def __init__(self, case: Json, place: Path, p: Provider) -> None:
        self.case = self._filled(case, p.url("").rstrip("/"))
        self.place = place
        for name in ("codex", "gemini"):
            program(place / "bin", name, "exit 1")
        self.environ = {
            "HOME": str(place / "home"),
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
            **self.case.get("environment", {}),
        }
        for model, name in case.get("does", {}).items():
            p.behave("api", name, model=model)
        self.report = self._import()
        self.loaded = self._load()

    def _filled(self, case: Json, url: str) -> Json:
        filled: Json = json.loads(json.dumps(case).replace("{url}", url))
        return filled

    def _import(self) -> ImportedText:
        """As `config import --dry-run` shows it."""
        config = str(self.place / "config.toml")
        if "hermes" not in self.case:
            return import_text(config, path=None, env=self.environ, write=False)
        theirs = self.place / "config.yaml"
        theirs.write_text(json.dumps(self.case["hermes"]))  # JSON is YAML
        return import_text(config, path=str(theirs), env=None, write=False)

    def _load(self) -> Loaded:
        """As a file of the user's takes it by name."""
        config = self.place / "config.toml"
        name = "config.yaml" if "hermes" in self.case else "JKZ_*"
        own = {"import": [name], **self.case.get("own", {})}
        config.write_text(tomlkit.dumps(own))
        found = load_file(str(config), self.environ)
        assert found.errors == ()
        return found


@pytest.mark.parametrize("case", CASES, ids=[one["id"] for one in CASES])
async def test_a_configuration_of_another_program_means_the_same_here(
    case: Json, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with provider() as p:
        given = Given(case, tmp_path, p)
        check_report(case.get("gives", {}), given)
        if "work" in case or "resolve" in case:
            await check_use(given, p)
    if "never" in case:
        secret = case["never"]
        assert secret not in repr(given.report) + repr(given.loaded)
        assert secret not in "".join(capfd.readouterr())
        kept = [one for one in tmp_path.rglob("*") if one.is_file() and one.name != "config.yaml"]
        assert len(kept) > 2
        assert not any(secret.encode() in one.read_bytes() for one in kept)


def check_report(expected: Json, given: Given) -> None:
    report, loaded = given.report, given.loaded
    policy = loaded.policy
    left = dict(report.left)
    taken = [(what, to) for what, to in report.taken]
    roles = policy.roles
    for key, wanted in expected.items():
        match key:
            case "chain":
                chain = () if policy.any_is_built_in else policy.chains["*"]
                assert [one.backend for one in chain] == wanted
            case "left" if wanted:
                assert all(left[what].startswith(why) for what, why in wanted.items())
            case "left":
                assert [w for w in left if not w.startswith("model of")] == []
            case "taken":
                for what, to in wanted.items():
                    assert any(one == what and where.startswith(to) for one, where in taken)
            case "credentials":
                made = tomllib.loads(report.toml)["backends"]
                assert {name: made[name]["credentials"] for name in wanted} == wanted
            case "tiers":
                assert {n: [e.tier for e in roles[n].chain] for n in wanted} == wanted
            case "no_tier":
                assert roles
                assert not any(e.tier == wanted for one in roles.values() for e in one.chain)
            case "in_session":
                last = {name: roles[name].chain[-1] for name in wanted}
                assert {name: one.model for name, one in last.items()} == wanted
                assert {one.tier for one in last.values()} == {"in_session"}
                assert {one.effort for one in last.values()} == {"medium"}
            case "kinds":
                found = {name: [roles[name].kind, roles[name].outage_policy] for name in wanted}
                assert found == wanted
            case _:
                raise AssertionError(key)


async def check_use(given: Given, p: Provider) -> None:
    clock = ManualClock()
    secrets = SecretSources(environ=given.environ, now=clock.now)
    transport = HttpTransport(clock=clock, environ=given.environ, secrets=secrets)
    config = Settings(policy=given.loaded.policy, options=given.loaded.options)
    async with (
        aclosing(transport),
        engine_in(
            given.place,
            config,
            store="sqlite",
            clock=clock,
            environ=given.environ,
            transports=Transports(command=transport, http=transport, served=transport),
            secrets=secrets,
        ) as engine,
    ):
        if "resolve" in given.case:
            await check_resolve(given.case["resolve"], engine)
        if "work" in given.case:
            await check_work(given.case["work"], engine, p)


async def check_resolve(said: Json, engine: Engine) -> None:
    found = await callers.resolve(engine, ResolveRequested(**said["ask"]))
    assert found.backend is not None
    name = BackendId(found.backend)
    seen = {
        "backend": found.backend,
        "model": found.model,
        "kind": engine.settings.policy.backends[name].kind,
        "base_url": engine.settings.options_of(name).base_url,
    }
    assert {key: seen[key] for key in said["is"]} == said["is"]


async def check_work(said: Json, engine: Engine, p: Provider) -> None:
    found = await work(engine, **said["ask"])
    calls = p.calls(said["route"])
    seen = {
        "state": found.state,
        "models": [one.model for one in found.attempts],
        "failures": [why for _, why in tried(found)],
        "asked_for": [one.model for one in calls],
        "keys": [one.credential for one in calls],
    }
    assert {key: seen[key] for key in said["is"]} == said["is"]


def test_every_import_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one.keys() & {"hermes", "environment"} for one in CASES)
