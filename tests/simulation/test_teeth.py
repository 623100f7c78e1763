"""The simulation has teeth: a rule that is taken out of the daemon is missed within few seeds."""

from typing import Any

import pytest
from msgspec import structs
from tests.simulation.run import play, somewhere

from fallbackd.core.case import Case, CaseView
from fallbackd.core.decide import DECIDED
from fallbackd.core.events import AttemptEnded
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.work import ended as decide_endings
from fallbackd.core.work.workspaces import blocker

SEEDS = range(200)
"""Where the seed that has shown it before does so no more: others do."""
_attempt_ended = decide_endings.attempt_ended


_resume_at = decide_endings.resume_at


def _resumes_again_and_again(case: Case, attempt: Attempt, *rest: Any, **more: Any) -> float | None:
    return _resume_at(case, structs.replace(attempt, resumes=None), *rest, **more)


def _believes_every_end(case: Case, event: AttemptEnded) -> None:
    _attempt_ended(case, structs.replace(event, gone=True))


def _lets_sessions_be_shared(case: CaseView, delegation: Delegation) -> Delegation | None:
    found = blocker(case, delegation)
    return None if found is not None and found.session == delegation.session else found


# (a seed that shows it, what is taken out, what stands there instead, a word of the breach)
RULES: dict[str, tuple[int, str, Any, str]] = {
    "a trial gives its lease back": (
        0,
        "fallbackd.core.health.release",
        lambda health, attempt: health,
        "a_trial_belongs_to_a_running_attempt",
    ),
    "nothing follows an attempt that is not proven gone": (
        27,
        "fallbackd.core.decide.DECIDED",
        {**DECIDED, AttemptEnded: _believes_every_end},
        "was started beside",
    ),
    "a conversation is resumed once": (
        0,
        "fallbackd.core.work.ended.resume_at",
        _resumes_again_and_again,
        "a_resumption_continues",
    ),
    "poison is held against nobody": (
        4,
        "fallbackd.core.work.resolution.is_poison",
        lambda turn: False,
        "is marked by the poison",
    ),
    "one trial at a time": (
        11,
        "fallbackd.core.routing.looking.is_leased",
        lambda health, now: False,
        "a second trial",
    ),
    "last resorts are a minute apart": (
        11,
        "fallbackd.core.routing.resolve.early_trial_at",
        lambda health, last_resort_s: 0.0,
        "is out:",
    ),
    "windows last": (
        11,
        "fallbackd.core.health.window_s",
        lambda policy, count, luck: 0.01,
        "is out:",
    ),
    "one writer in a directory": (
        2,
        "fallbackd.core.work.workspaces._overlap",
        lambda one, other: False,
        "one_family_writes",
    ),
    "one delegation in a session": (
        4,
        "fallbackd.core.work.admit.blocker",
        _lets_sessions_be_shared,
        "a_session_is_held",
    ),
    "what was asked for inside an attempt ends with it": (
        1,
        "fallbackd.core.work.ended.stop_below",
        lambda case: None,
        "what_is_below_ends_with_its_attempt",
    ),
    "a success proves a backend": (
        0,
        "fallbackd.core.health.succeed",
        lambda health, started_at: health,
        "stands after the proof",
    ),
    "trouble of this machine marks nobody": (
        32,
        "fallbackd.core.work.ended.own_trouble",
        lambda *_, **__: None,
        "is marked network",
    ),
    "a stated time is believed within bounds": (
        1,
        "fallbackd.engine.judging.max_wait_s",
        lambda reasons, reason: None,
        "which nobody can know",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_out_is_missed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, target, instead, shown_by = RULES[rule]
    monkeypatch.setattr(target, instead)
    with somewhere() as place:
        seeds = (first, *SEEDS)
        broken = next((found for seed in seeds if (found := play(seed, place).broken)), ())
    assert any(shown_by in one for one in broken), broken
