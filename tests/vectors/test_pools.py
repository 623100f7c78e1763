"""Cases of earlier systems about keys, retries and callers of their own. Data: `pools.json`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.playbook import T0, Playbook, delegate, fail, failed, policy_of, succeeded

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import HealthCleared, HealthMarked, Reported, ResolveRequested
from fallbackd.core.failures import Failure
from fallbackd.core.health import from_disk
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.policy import REASONS, Backend, Entry, max_wait_s
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.core.views import health_entry, scope_entry

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "pools.json").read_text("utf-8"))
ACME = BackendId("acme")
KIND = "openai-http"
NEVER_ENDS = 40
"""More attempts than any budget allows."""


def judged(evidence: Json, *, kind: str, now: float) -> Failure | None:
    return classify(
        Evidence(**evidence),
        SIGNATURES[kind],
        now=now,
        max_wait_s=lambda reason: max_wait_s(REASONS, reason),
    )


class Driver:
    """One backend `acme` with the keys of the case, its chain behind it, and who answers how."""

    def __init__(self, case: Json) -> None:
        self.case = case
        self.count = 0
        self.generation = 0
        self._begin()

    def _begin(self) -> None:
        pool, chain = self.case["pool"], self.case.get("chain", [])
        acme = Backend(
            id=ACME,
            kind=KIND,
            model="m" if pool["labels"] else None,
            provider="api.acme.example" if pool["labels"] else None,
            credentials=tuple(pool["labels"]),
            credential_strategy=pool.get("strategy", "fill_first"),
            quota=pool.get("quota"),
        )
        self.play = Playbook(policy_of(acme, *chain, chains={"acme": chain} if chain else {}))

    def step(self, step: Json) -> None:
        getattr(self, next(iter(step)))(step)

    # --- what happens ----------------------------------------------------------------------

    def after(self, step: Json) -> None:
        self.play.at(self.play.now + step["after"])

    def restart(self, step: Json) -> None:
        play = self.play.restart()
        records = play.peek().health.values()
        play.put_health(*(from_disk(one, now=play.wall) for one in records))

    def mark(self, step: Json) -> None:
        self.play.when(
            HealthMarked(target=step["mark"], reason=step.get("reason"), ttl_s=step.get("ttl_s"))
        )
        assert self.play.decision.answer is step.get("gives", True)

    def clear(self, step: Json) -> None:
        self.play.when(HealthCleared(target=step["clear"]))
        assert self.play.decision.answer == step["gives"]

    def report(self, step: Json) -> None:
        said, evidence = dict(step["report"]), step.get("evidence")
        failure = None if evidence is None else self._judged(evidence)
        if "lease" in said:
            said["lease"] = AttemptId(said["lease"])
        backend = BackendId(said.pop("backend", ACME))
        outcome: Any = "success" if failure is None else "failure"
        event = Reported(outcome=outcome, backend=backend, failure=failure, **said)
        found = self.play.when(event).decision.answer
        assert isinstance(found, ReportAnswer)
        for key, expected in step["gives"].items():
            of = found if key == "ignored" else found.failure
            assert getattr(of, key) == expected, key

    def _judged(self, evidence: Json) -> Failure:
        found = judged(evidence, kind=KIND, now=self.play.wall)
        assert found is not None
        return found

    def judged(self, step: Json) -> None:
        found, expected = judged(step["evidence"], kind=step["judged"], now=T0), step["gives"]
        if expected is None:
            assert found is None
            return
        assert found is not None
        assert found.reason.value in expected["reason"]
        flags = {key: one for key, one in expected.items() if key != "reason"}
        assert {key: getattr(found, key) for key in flags} == flags

    def resolve(self, step: Json) -> None:
        asked, gives = dict(step["resolve"]), step["gives"]
        if "chain" in asked:
            asked["chain"] = tuple(Entry(backend=BackendId(one)) for one in asked["chain"])
        if "lease" in asked:
            asked["lease"] = AttemptId(asked["lease"])
        found = self.play.when(ResolveRequested(backend=ACME, **asked)).decision.answer
        assert isinstance(found, Resolution)
        assert (found.backend is None) == gives.get("refused", False)
        for key in ("backend", "model", "credential"):
            if key in gives:
                assert getattr(found, key) == gives[key], key
        if "retry_in" in gives:
            assert found.retry_at == self.play.wall + gives["retry_in"]
        if "generation" in gives:
            assert found.lease_generation is not None
            assert found.lease_generation > self.generation
            self.generation = found.lease_generation

    # --- work --------------------------------------------------------------------------------

    def delegate(self, step: Json) -> None:
        if self.case.get("fresh"):
            self._begin()
        done = [self._work(step, luck=n / 50) for n in range(step.get("times", 1))]
        found, gives = done[-1], step["gives"]
        firsts = [one.attempts[0].credential for one in done]
        failure = found.attempts[0].failure
        seen: Json = {
            "firsts": firsts,
            "first": firsts[0],
            "credentials": [one.credential for one in found.attempts],
            "backends": [one.backend for one in found.attempts],
            "attempts": len(found.attempts),
            "first_failure": None if failure is None else failure.reason.value,
            "hops": len(found.hops),
            "state": found.state,
            "served_by": found.served_by,
            "retry_in": None if found.retry_at is None else found.retry_at - self.play.wall,
        }
        if "among" in gives:
            assert set(firsts) == set(gives["among"])
        assert {key: seen[key] for key in gives if key != "among"} == {
            key: one for key, one in gives.items() if key != "among"
        }

    def _work(self, step: Json, *, luck: float) -> Delegation:
        """A delegation to its end. Waits are over as soon as they have begun."""
        play = self.play
        self.count += 1
        name = f"d{self.count}"
        play.when(delegate(name, backend=ACME, luck=luck))
        failures = 0
        for _ in range(NEVER_ENDS):
            found = play.delegation(name)
            if found.is_ended:
                return found
            running = found.running
            if running is None:
                due = play.next_wake()
                assert due is not None
                play.at(due[1])
                continue
            failure = self._ending(step, running.backend, running.credential, failures)
            failures += failure is not None
            play.when(
                succeeded(running.attempt) if failure is None else failed(running.attempt, failure)
            )
        raise AssertionError("the walk has no end")

    def _ending(
        self, step: Json, backend: str, credential: str | None, failures: int
    ) -> Failure | None:
        evidence = self.case.get("answers", {}).get(credential)
        if evidence is not None:
            return self._judged(evidence)
        if "fails" not in step or failures >= step.get("times_it_fails", NEVER_ENDS):
            return None
        # A policy of the task's own, and a failure of each kind, as its reason's table has it.
        return fail(Reason(step["fails"]), at=self.play.now, wait_s=step.get("wait_s"))

    def windows_of(self, step: Json) -> None:
        """Failures of one trial after the other, each when the window before is over."""
        play = self.play
        for number, expected_s in enumerate(step["are"]):
            name = f"w{number}"
            play.when(delegate(name, backend=ACME))
            play.when(failed(f"{name}.1", fail(Reason(step["windows_of"]), at=play.now)))
            until_at = play.outage("acme").until_at
            assert until_at is not None
            assert until_at - play.wall == pytest.approx(expected_s)
            play.at(until_at - T0 + 1)

    # --- what is seen ------------------------------------------------------------------------

    def health(self, step: Json) -> None:
        self._compare(self._entry(step["health"]), step["is"])

    def _entry(self, target: str) -> Json:
        play = self.play
        if ":" in target:
            return scope_entry(target, play.peek(), now=play.wall)  # type: ignore[arg-type]
        return health_entry(BackendId(target), play.peek(), play.policy, now=play.wall)

    def _compare(self, found: Json, expected: Json) -> None:
        for key, value in expected.items():
            is_exact = value is None or isinstance(value, str | bool)
            assert found[key] == (value if is_exact else pytest.approx(value)), key

    def listed(self, step: Json) -> None:
        (one,) = [one for one in self._entry(ACME)["scopes"] if one["scope"] == step["listed"]]
        assert all(one[name] is not None for name in step["fields"])
        (key,) = self._entry(ACME)["credentials"]
        assert key["label"] == step["listed"].rpartition("/")[2]
        assert key["state"] == one["state"]


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
def test_a_case_about_keys_and_retries_is_decided_alike(case: Json) -> None:
    driver = Driver(case)
    for step in case["steps"]:
        driver.step(step)


def test_every_case_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["steps"] for one in CASES)
