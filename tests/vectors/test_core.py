"""Cases of the systems that came before, decided by the core. The data is `core.json`."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import T0, Playbook, delegate, fail, failed, policy_of, succeeded

from fallbackd.config import profiles
from fallbackd.config.voice import read_voice
from fallbackd.core import meter
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import (
    HealthCleared,
    HealthMarked,
    ReadinessSeen,
    Reported,
    ResolveRequested,
    SessionCompacted,
    SessionEnded,
    Ticked,
)
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.policy import REASONS, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.core.routing.suggest import Task, suggest
from fallbackd.core.views import fallback_reason, health_entries, health_entry

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "core.json").read_text("utf-8"))
INSTANTS = ("since_at", "until_at", "retry_at")


def policy_for(case: Json) -> Policy:
    said = case.get("policy", {"built_in": True})
    if said.get("built_in"):
        # The earlier system had a Hermes server and no claude.
        backends, _ = profiles.built_in({profiles.HERMES_KEY: "set"})
        backends[profiles.CLAUDE] = structs.replace(backends[profiles.CLAUDE], enabled=False)
        for name, cap in said.get("caps", {}).items():
            key = BackendId(name)
            backends[key] = structs.replace(backends[key], hourly_cap=cap)
        return Policy(backends=backends, chains=profiles.chains(backends))
    made = policy_of(*said["backends"], chains=said.get("chains", {}), roles=said.get("roles", {}))
    reasons = {
        **REASONS,
        **{
            Reason(name): structs.replace(REASONS[Reason(name)], **knobs)
            for name, knobs in said.get("reasons", {}).items()
        },
    }
    roles = {
        name: structs.replace(
            role, fallback_on=frozenset(Reason(one) for one in said["fallback_on"][name])
        )
        if name in said.get("fallback_on", {})
        else role
        for name, role in made.roles.items()
    }
    return structs.replace(made, reasons=reasons, roles=roles)


class Driver:
    """Plays the steps of one case. Instants are seconds after its start."""

    def __init__(self, case: Json) -> None:
        self.play = Playbook(policy_for(case))
        self.current = ""
        self.count = 0
        for name in case.get("missing", []):
            self.not_ready({"not_ready": name, "reason": "not_installed"})

    def step(self, step: Json) -> None:
        word = next(iter(step))
        getattr(self, {"import": "import_", "is": "is_"}.get(word, word))(step)

    # --- what happens ----------------------------------------------------------------------

    def at(self, step: Json) -> None:
        self.play.at(step["at"])

    def after(self, step: Json) -> None:
        self.play.at(self.play.now + step["after"])

    def mark(self, step: Json) -> None:
        self.play.when(
            HealthMarked(target=step["mark"], reason=step["reason"], ttl_s=step.get("ttl_s"))
        )
        assert self.play.decision.answer is True

    def clear(self, step: Json) -> None:
        self.play.when(HealthCleared(target=step["clear"]))
        assert self.play.decision.answer == step["gives"]

    def import_(self, step: Json) -> None:
        entries = {
            name: {key: T0 + at if key.endswith("_at") else at for key, at in one.items()}
            for name, one in step["import"].items()
        }
        read = read_voice(json.dumps(entries), path="", now=self.play.wall)
        assert read.warnings == ()
        for one in read.marks:
            self.play.when(
                HealthMarked(
                    target=one.backend,
                    reason=one.words,
                    since_at=one.since_at,
                    ttl_s=one.ttl_s,
                    source="import",
                )
            )

    def limited(self, step: Json) -> None:
        """A caller has run into a throttle there."""
        failure = fail(Reason.RATE_LIMIT, at=self.play.now, wait_s=step.get("wait_s"))
        self.play.when(
            Reported(outcome="failure", backend=BackendId(step["limited"]), failure=failure)
        )

    def not_ready(self, step: Json) -> None:
        self.play.when(
            ReadinessSeen(backend=BackendId(step["not_ready"]), reason=Reason(step["reason"]))
        )

    def starts(self, step: Json) -> None:
        name = BackendId(step["starts"])
        meters = dict(self.play.memory.mirror.meters)
        for _ in range(step["times"]):
            meters[name] = meter.started(meters.get(name), name, now=self.play.wall)
        self.play.memory.mirror.meters = meters

    def delegate(self, step: Json) -> None:
        self.count += 1
        name = f"d{self.count}"
        self.play.when(delegate(name, **step["delegate"]))
        decision = self.play.decision
        if "rejected" in step:
            assert decision.rejection is not None
            assert decision.rejection.kind == step["rejected"]
        elif "same_as" in step:
            assert isinstance(decision.answer, Delegation)
            assert decision.answer.delegation == step["same_as"]
        else:
            assert decision.rejection is None
            self.current = name

    def _running(self) -> str:
        running = self.play.delegation(self.current).running
        assert running is not None
        return running.attempt

    def fails(self, step: Json) -> None:
        failure = fail(Reason(step["fails"]), at=self.play.now, wait_s=step.get("wait_s"))
        self.play.when(failed(self._running(), failure, gone=step.get("gone", True)))

    def succeeds(self, step: Json) -> None:
        self.play.when(succeeded(self._running()))

    def tick(self, step: Json) -> None:
        before = len(self.play.noted("health.moved"))
        fallen = tuple(self.play.session(one) for one in step.get("fallen", []))
        self.play.when(Ticked(fallen_sessions=fallen))
        if step["tick"] is not None:
            assert len(self.play.noted("health.moved")) - before == step["tick"]

    def compacted(self, step: Json) -> None:
        self.play.when(SessionCompacted(session=SessionId(step["compacted"])))

    def ended(self, step: Json) -> None:
        self.play.when(SessionEnded(session=SessionId(step["ended"])))

    # --- what is asked ---------------------------------------------------------------------

    def resolve(self, step: Json) -> None:
        self.play.when(ResolveRequested(**step["resolve"]))
        gives, decision = step["gives"], self.play.decision
        if "rejected" in gives:
            assert decision.rejection is not None
            assert decision.rejection.kind == gives["rejected"]
            return
        found = decision.answer
        assert isinstance(found, Resolution)
        by_name = {one.backend: one for one in found.candidates}
        seen = {
            "backend": found.backend,
            "trigger": found.trigger,
            "retry_at": None if found.retry_at is None else found.retry_at - T0,
            "order": [one.backend for one in found.candidates],
            "verdicts": {n: by_name[n].verdict for n in gives.get("verdicts", {})},
            "states": {n: by_name[n].state for n in gives.get("states", {})},
            "reasons": {n: by_name[n].reason for n in gives.get("reasons", {})},
            "never": [n for n in gives.get("never", []) if n not in by_name],
        }
        assert {key: seen[key] for key in gives} == gives

    def report(self, step: Json) -> None:
        said = dict(step["report"])
        failure = fail(
            Reason(said.pop("reason")), at=self.play.now, wait_s=said.pop("wait_s", None)
        )
        if "attempt" in said:
            said["attempt"] = AttemptId(said["attempt"])
        self.play.when(Reported(outcome="failure", failure=failure, **said))
        found = self.play.decision.answer
        assert isinstance(found, ReportAnswer)
        seen = {
            "next": None if found.next is None else found.next.backend,
            "ignored": found.ignored,
            "failure": None if found.failure is None else found.failure.reason.value,
        }
        assert {key: seen[key] for key in step["gives"]} == step["gives"]

    def suggest(self, step: Json) -> None:
        play, gives = self.play, step["gives"]
        entries = health_entries(play.peek(), play.policy, now=play.wall)
        states = {BackendId(name): one["state"] for name, one in entries.items()}
        found = suggest(
            play.policy, Task(**step["suggest"]), states, play.peek().meters, now=play.wall
        )
        if "suggestion" in gives:
            assert found.backend == gives["suggestion"]
        if "eta_s" in gives:
            assert found.eta_s == pytest.approx(gives["eta_s"])
        if "available" in gives:
            assert list(found.available) == gives["available"]
        for name, points in gives.get("scores", {}).items():
            assert found.scores[BackendId(name)] == points
        for name in gives.get("absent", []):
            assert name not in found.scores
            assert name not in found.available
        if "cap" in gives:
            name, used, cap = gives["cap"]
            assert (found.caps[name].used, found.caps[name].cap) == (used, cap)

    # --- what is seen ----------------------------------------------------------------------

    def health(self, step: Json) -> None:
        play = self.play
        found = health_entry(BackendId(step["health"]), play.peek(), play.policy, now=play.wall)
        for key, expected in step["is"].items():
            value = found[key]
            if key in INSTANTS and value is not None:
                value -= T0
            assert value == (
                pytest.approx(expected) if isinstance(expected, float) else expected
            ), key

    def window(self, step: Json) -> None:
        outage = self.play.health(step["window"]).outage
        assert outage is not None
        assert outage.until_at is not None
        low, high = step["within"]
        assert low <= outage.until_at - outage.since_at <= high

    def session(self, step: Json) -> None:
        found = self.play.memory.mirror.session(SessionId(step["session"]))
        if step["is"] is None:
            assert found is None
            return
        assert found is not None
        for key, expected in step["is"].items():
            if key in ("hops", "notices"):
                shown = found.hops if key == "hops" else found.notices_sent
                assert len(shown) == expected
            else:
                assert getattr(found, key) == expected, key

    def notices(self, step: Json) -> None:
        for kind, count in step["notices"].items():
            found = [
                one for one in self.play.noted("session.notice") if one.fields["notice"] == kind
            ]
            assert len(found) == count, kind

    def is_(self, step: Json) -> None:
        said = dict(step["is"])
        found = self.play.delegation(said.pop("of", self.current))
        seen: Json = {
            "attempts": [one.backend for one in found.attempts],
            "exit_codes": [one.exit_code for one in found.attempts],
            "logs": [one.log_path for one in found.attempts],
            "hops": [[h.from_backend, h.to_backend, h.trigger, h.reason] for h in found.hops],
            "hops_to": [one.to_backend for one in found.hops],
            "answers": self.play.answered.count(found.delegation),
            "failure": None if found.failure is None else found.failure.reason.value,
        }
        for key, expected in said.items():
            if key == "fallback_reason":
                told = fallback_reason(found)
                assert (told is None) == (expected is None)
                assert told is None or told.startswith(f"{expected}:")
            elif key == "message":
                assert expected in (found.message or "")
            elif key == "retry_is_earliest_of":
                ends = [self.play.seen(name).until_at for name in expected]
                known = [at for at in ends if at is not None]
                assert found.retry_at == min(known)
            else:
                assert (seen[key] if key in seen else getattr(found, key)) == expected, key


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
def test_a_case_of_an_earlier_system_is_decided_alike(case: Json) -> None:
    driver = Driver(case)
    for step in case["steps"]:
        driver.step(step)


def test_every_case_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["steps"] for one in CASES)
