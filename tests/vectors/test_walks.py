"""
Cases of sessions, chains and outages over several turns, decided by the core.

The data is `walks.json`. A policy is given in parts, or as a user's file (`config`); how an
attempt ends may be given as evidence, which the classifier judges.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.playbook import Playbook, failed
from tests.vectors.test_roles import RoleDriver

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.config.load import load
from fallbackd.core.callers.lease import ReportAnswer
from fallbackd.core.case import Case
from fallbackd.core.events import (
    AttemptEnded,
    CancelRequested,
    ConfigReloaded,
    ReadinessSeen,
    Reported,
)
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import Backend, Entry, Policy
from fallbackd.core.protocol import Evidence
from fallbackd.core.records import Attempt
from fallbackd.core.work.retries import backoff_s

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "walks.json").read_text("utf-8"))


class WalkDriver(RoleDriver):
    def __init__(self, case: Json) -> None:
        super().__init__({"policy": {"backends": []}, **case})
        if "config" in case:
            self.play = Playbook(self.read(case))

    def read(self, case: Json) -> Policy:
        found = load(case["config"], path="config.toml")
        assert found.errors == ()
        warned = [one.message for one in found.warnings]
        assert len(warned) == ("warns" in case)
        assert all(case["warns"] in one for one in warned)
        return found.policy

    # --- what happens --------------------------------------------------------------------------

    def turn(self, step: Json) -> None:
        self.begun = self.play.now
        super().turn(step)

    def end(self, running: Attempt, behaves: Json) -> None:
        how = behaves.get(running.backend, "ok")
        if not (isinstance(how, dict) and "evidence" in how):
            super().end(running, behaves)
            return
        evidence = msgspec.convert(how["evidence"], Evidence)
        failure = classify(evidence, SIGNATURES[how["kind"]], now=self.play.wall)
        assert failure is not None
        self.play.when(failed(running.attempt, failure))

    def cancel(self, step: Json) -> None:
        """It is told to stop, and proven to have stopped."""
        name = DelegationId(step["cancel"])
        self.play.when(CancelRequested(delegation=name))
        running = self.play.delegation(name).running
        assert running is not None
        self.play.when(
            AttemptEnded(attempt=running.attempt, failure=None, exit_code=143, gone=True)
        )

    def report_success(self, step: Json) -> None:
        said = {"started": 0.0, **step}
        event = Reported(
            outcome="success", started_at=self.play.wall + said["started"], **step["report_success"]
        )
        assert isinstance(self.play.when(event).decision.answer, ReportAnswer)

    def reloaded(self, step: Json) -> None:
        self.play.when(ConfigReloaded())

    def login_changed(self, step: Json) -> None:
        self.play.when(ReadinessSeen(backend=BackendId(step["login_changed"]), repaired=True))

    # --- what is seen --------------------------------------------------------------------------

    def resolve(self, step: Json) -> None:
        asked = dict(step["resolve"])
        if "chain" in asked:
            asked["chain"] = tuple(Entry(backend=BackendId(one)) for one in asked["chain"])
        super().resolve({**step, "resolve": asked})

    def took_s(self, step: Json) -> None:
        assert self.play.now - self.begun == step["took_s"]

    def told(self, step: Json) -> None:
        """The values of the last decision that `explain` shows."""
        story = self.play.memory.stories[-1]
        found = [one for one in self.play.memory.stories if one.delegation == story.delegation]
        assert any(step["told"].items() <= one.policy.items() for one in found)

    def explains(self, step: Json) -> None:
        name = step["explains"]
        found = [
            one
            for story in self.play.memory.stories
            for one in story.verdicts
            if one.backend == name
        ]
        shown = msgspec.to_builtins(found[-1])
        assert {key: shown[key] for key in step["is"]} == step["is"]


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
def test_a_case_over_several_turns_is_decided_alike(case: Json) -> None:
    driver = WalkDriver(case)
    for step in case["steps"]:
        driver.step(step)


@pytest.mark.parametrize("retry", [6, 70])
def test_no_retry_waits_longer_than_the_ceiling_whatever_its_jitter(retry: int) -> None:
    """Of cases 002-444 and 002-445: from the sixth on the ceiling alone is left."""
    play = Playbook(Policy())
    case = Case(play.peek(), play.policy, now=play.wall)
    backend = Backend(id=BackendId("p"), kind="generic-cli")
    assert {backoff_s(case, backend, retry, luck=n / 200) for n in range(200)} == {60.0}


def test_every_case_over_several_turns_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["steps"] for one in CASES)
