"""
Cases of roles, recovery, tiers and questions, decided by the core. The data is `roles.json`.

A turn is one delegation played to its end: `behaves` says how each backend (or `backend|model`)
ends its attempts, a list one after the other; who is not named answers.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.playbook import T0, Playbook, delegate, fail, failed, policy_of, succeeded
from tests.vectors.test_core import Driver

from fallbackd.api import shapes
from fallbackd.core.events import ClockStepped, HealthMarked, QuestionAnswered
from fallbackd.core.health import Health, Outage
from fallbackd.core.ids import BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.policy import Backend, Entry, Policy, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation, Session
from fallbackd.stores.mirror import LoadedRecords

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "roles.json").read_text("utf-8"))


def policy_for(case: Json) -> Policy:
    said = case["policy"]
    backends: list[str | Backend] = [
        one if isinstance(one, str) else msgspec.convert({"kind": "codex", **one}, Backend)
        for one in said["backends"]
    ]
    roles = {
        name: msgspec.convert(
            {"name": name, **one, "chain": [entry_of(each) for each in one.get("chain", [])]}, Role
        )
        for name, one in said.get("roles", {}).items()
    }
    chains = {
        name: [msgspec.convert(entry_of(each), Entry) for each in chain]
        for name, chain in said.get("chains", {}).items()
    }
    return policy_of(*backends, chains=chains, roles=roles, **said.get("defaults", {}))


def entry_of(one: str | Json) -> Json:
    return {"backend": one} if isinstance(one, str) else one


class RoleDriver(Driver):
    def __init__(self, case: Json) -> None:
        self.play = Playbook(policy_for(case))
        self.current = ""
        self.count = 0
        self.behaves: Json = case.get("behaves", {})
        self.gap_s = float(case.get("gap_s", 0))

    # --- what was there before -----------------------------------------------------------------

    def on(self, step: Json) -> None:
        """A session has been where it is for some time."""
        said = dict(step["on"])
        name, model = said.pop("backend"), said.pop("model", None)
        session = Session(
            session=SessionId("s"),
            current=BackendId(name),
            answered_by=BackendId(name),
            answered_model=model,
            created_at=self.play.wall,
            last_used_at=self.play.wall,
            **{"role": "build", "original": BackendId("primary"), **said},
        )
        mirror = self.play.memory.mirror
        mirror.load(LoadedRecords(health=tuple(mirror.health.values()), sessions=[session]))

    def record(self, step: Json) -> None:
        """An outage of a scope that is on record, its instants in seconds from now."""
        said = dict(step["record"])
        scope = said.pop("scope")
        name = ScopeId(scope if ":" in scope else f"backend:{scope}")
        at = self.play.wall
        outage = Outage(
            state=said.get("state", "rate_limited"),
            reason=Reason(said["reason"]),
            since_at=at + said.get("since", said.get("failed", -1)),
            until_at=at + said["until"],
            cooldown_s=said.get("cooldown_s", 0),
            source=said.get("source", "policy"),
            count=said.get("count", 1),
            last_failure_at=at + said.get("failed", -1),
        )
        self.play.put_health(Health(scope=name, outage=outage))

    # --- what happens --------------------------------------------------------------------------

    def turn(self, step: Json) -> None:
        self.take(step["turn"], {**self.behaves, **step.get("behaves", {})})
        if "is" in step:
            self.is_(step)

    def turns(self, step: Json) -> None:
        """Several of one session; `gives` says who served each."""
        said = step["turns"]
        behaves = {**self.behaves, **step.get("behaves", {})}
        served = [self.take(said, behaves) for _ in range(len(step["gives"]))]
        assert served == step["gives"]

    def take(self, asked: Json, behaves: Json) -> str | None:
        self.play.at(self.play.now + self.gap_s)
        self.count += 1
        self.current = f"d{self.count}"
        self.play.when(delegate(self.current, **asked))
        assert self.play.decision.rejection is None, self.play.decision.rejection
        left = {name: list(one) if isinstance(one, list) else one for name, one in behaves.items()}
        self.finish(left)
        return self.found.served_by

    @property
    def found(self) -> Delegation:
        return self.play.delegation(self.current)

    def finish(self, behaves: Json) -> None:
        """Until the delegation has ended, or asks, or waits for longer than an hour."""
        until = self.play.now + 3600
        while not self.found.is_ended and self.found.question is None:
            running = self.found.running
            if running is not None:
                self.end(running, behaves)
                continue
            wake = self.play.next_wake(until)
            assert wake is not None, f"{self.current} waits for nothing"
            self.play.at(wake[1])

    def end(self, running: Attempt, behaves: Json) -> None:
        name = f"{running.backend}|{running.model}"
        how = behaves.get(name, behaves.get(running.backend, "ok"))
        if isinstance(how, list):
            how = how.pop(0) if how else "ok"
        if how == "ok":
            self.play.when(succeeded(running.attempt))
            return
        said = {"reason": how} if isinstance(how, str) else dict(how)
        failure = fail(
            Reason(said.pop("reason")), at=self.play.now, wait_s=said.pop("wait_s", None)
        )
        self.play.when(failed(running.attempt, failure, **said))

    def choose(self, step: Json) -> None:
        name = f"{self.current}.q{step.get('number', 1)}"
        self.play.when(
            QuestionAnswered(
                question=name,
                delegation=DelegationId(self.current),
                choice=step["choose"],
                note=step.get("note"),
                uid=1000,
            )
        )
        rejection = self.play.decision.rejection
        assert (None if rejection is None else rejection.kind) == step.get("rejected")
        self.finish({**self.behaves, **step.get("behaves", {})})

    def restart(self, step: Json) -> None:
        self.play.restart()
        self.play.resume(*self.play.memory.mirror.active, boot="next")

    def at_once(self, step: Json) -> None:
        """Many at the same instant; `starts` says how many attempts that makes."""
        names = [f"m{number}" for number in range(step["at_once"])]
        for name in names:
            self.play.when(delegate(name, **step["ask"]))
        made = [one for name in names for one in self.play.delegation(name).attempts]
        assert len(made) == step["starts"]
        assert all(one.trial == step.get("trial", False) for one in made)

    def step_clock(self, step: Json) -> None:
        self.play.when(ClockStepped(by_s=step["step_clock"]))

    def repair(self, step: Json) -> None:
        self.play.when(HealthMarked(target=step["repair"], ttl_s=0))

    # --- what is seen --------------------------------------------------------------------------

    def events(self, step: Json) -> None:
        """How often each kind was told: `kind`, or `kind/word` for its trigger or notice."""
        for name, count in step["events"].items():
            kind, _, word = name.partition("/")
            found = [
                one
                for one in self.play.noted(kind)
                if not word or word in (one.fields.get("trigger"), one.fields.get("notice"))
            ]
            assert len(found) == count, name

    def is_(self, step: Json) -> None:
        """What the caller is told."""
        shown = msgspec.to_builtins(shapes.delegation(self.found))
        attempts = shown["attempts"]
        question = shown["question"] or {}
        seen = {
            **shown,
            "attempts": [one["backend"] for one in attempts],
            "models": [one["model"] for one in attempts],
            "trials": [one["trial"] for one in attempts],
            "failures": [one["failure"] and one["failure"]["reason"] for one in attempts],
            "hops": [[one["from"], one["to"], one["trigger"]] for one in shown["hops"]],
            "tiers_attempted": list(shown["tiers_attempted"]),
            "verdicts": {one["backend"]: one["verdict"] for one in shown["candidates"]},
            "asks": question.get("kind") if question.get("closed_at") is None else None,
            "choice": question.get("choice"),
            "choices": [one["choice"] for one in question.get("options", [])],
            "detail": (shown["failure"] or {}).get("detail"),
            "reason": (shown["failure"] or {}).get("reason"),
            "returns": None if shown["retry_at"] is None else round(shown["retry_at"] - T0, 3),
            "told": (shown["fallback_reason"] or ":").partition(":")[0],
            "warned": len(shown["warnings"]),
        }
        for key, expected in step["is"].items():
            assert seen[key] == expected, (key, seen[key])


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
def test_a_case_about_roles_is_decided_alike(case: Json) -> None:
    driver = RoleDriver(case)
    for step in case["steps"]:
        driver.step(step)


def test_every_case_about_roles_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["steps"] for one in CASES)
