"""Which events are told to people, and in which words."""

from typing import Any

import pytest
from tests.stores.records import NOW, a_delegation, an_ended

from fallbackd.core.decision import Journaled, Note
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.fronts.notify.front import Pacing
from fallbackd.fronts.notify.rules import Absences, near_cap, notification_of, substituted


def entry(kind: str, *, delegation: str | None = "d1", **fields: Any) -> Journaled:
    return Journaled(
        seq=7,
        note=Note(
            kind=kind,
            at=NOW,
            delegation=None if delegation is None else DelegationId(delegation),
            session=SessionId("s1"),
            backend=BackendId("codex"),
            fields=fields,
        ),
    )


def words(told: Journaled, **more: Any) -> tuple[str, str] | None:
    found = notification_of(told, None, **{"finished_after_s": None, **more})
    return None if found is None else (found.event, found.text)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            entry("delegation.hopped", **{"from": "codex", "to": "claude", "reason": "auth"}),
            ("failed_over", "codex is unavailable (auth); continuing with claude."),
        ),
        (entry("delegation.hopped", **{"from": "codex", "to": None, "reason": "auth"}), None),
        (
            entry("delegation.ended", state="refused"),
            ("all_unavailable", "No backend in the chain is available for a delegation."),
        ),
        (entry("delegation.ended", state="refused", detail="skipped"), None),
        (entry("delegation.ended", state="succeeded"), None),
        (
            entry("health.moved", scope="backend:codex", **{"from": "cooldown", "to": "healthy"}),
            ("recovered", "codex is available again."),
        ),
        (entry("health.moved", scope="backend:codex", **{"from": "paused", "to": "healthy"}), None),
        (
            entry("session.notice", delegation=None, notice="outage"),
            ("all_unavailable", "No model is available for a session of opencode."),
        ),
        (entry("session.notice", notice="outage"), None),
        (entry("attempt.ended"), None),
        (
            entry("standby.began", until_at=NOW + 5400),
            (
                "standby",
                "A delegation waits for codex (1 h 30 min). See it with: fallbackd-client standby",
            ),
        ),
        (
            entry("standby.began", until_at=None),
            (
                "standby",
                "A delegation waits for codex (until a repair). See it with:"
                " fallbackd-client standby",
            ),
        ),
        (
            entry("standby.ended", state="started"),
            ("standby", "A delegation that waited for a backend continues on codex."),
        ),
        (
            entry("standby.ended", state="refused"),
            ("standby", "A delegation that waited for a backend is refused."),
        ),
    ],
)
def test_an_event_is_told_in_plain_words_or_not_at_all(
    told: Journaled, expected: tuple[str, str] | None
) -> None:
    assert words(told) == expected


def test_a_question_is_told_without_its_text() -> None:
    found = words(entry("question.opened", question="d1.q1", text="about the secret plan"))
    assert found is not None
    assert found[0] == "question"
    assert "d1.q1" in found[1]
    assert "secret" not in found[1]


def test_the_end_of_work_is_told_where_it_took_long() -> None:
    told = entry("delegation.ended", state="failed")
    one = a_delegation("d1", at=NOW - 90)
    found = notification_of(told, one, finished_after_s=60)
    assert found is not None
    assert found.text.endswith("failed on codex after 1 min 30 s.")
    assert notification_of(told, one, finished_after_s=91) is None
    assert notification_of(told, an_ended("d1", at=NOW - 900), finished_after_s=None) is None


def test_a_program_that_was_not_there_and_is_cleared_is_no_recovery() -> None:
    absences = Absences(())
    gone = entry(
        "health.moved",
        scope="backend:codex",
        reason=Reason.NOT_INSTALLED.value,
        **{"from": "healthy", "to": "broken"},
    )
    back = entry("health.moved", scope="backend:codex", **{"from": "broken", "to": "healthy"})
    assert not absences.saw(gone)
    assert words(back, was_absent=absences.saw(back)) is None
    assert words(back, was_absent=absences.saw(back)) == ("recovered", "codex is available again.")


def test_a_cap_is_near_from_four_fifths_on() -> None:
    backend = Backend(id=BackendId("codex"), kind="codex", hourly_cap=10)
    assert near_cap(backend, 7) is None
    assert near_cap(backend, 8) == "codex has used 8 of 10 requests of this hour."
    assert near_cap(backend, 10) is None


def test_a_window_of_a_plan_that_is_nearly_used_up_is_named_with_its_length() -> None:
    week = entry("plan.near", used_percent=83.4, window_s=604_800.0)
    assert words(week) == ("limit_near", "codex has used 83 % of its plan for 7 days.")
    hours = entry("plan.near", used_percent=80.0, window_s=18_000.0)
    assert words(hours) == ("limit_near", "codex has used 80 % of its plan for 5 h 0 min.")


def test_the_same_is_not_told_again_soon_and_not_too_much_in_an_hour() -> None:
    now = [0.0]
    pacing = Pacing(lambda: now[0])

    def lets(key: str) -> bool:
        return pacing.lets_through(key, repeat_after_s=60, max_per_hour=3)

    assert [lets(key) for key in ("a", "a", "b", "c", "d", "d")] == [
        *(True, False, True, True),
        *(False, False),
    ]
    assert pacing.left_out == 2
    now[0] = 3600.0
    assert lets("a")


def test_values_are_arguments_and_never_options() -> None:
    found = notification_of(
        entry("delegation.hopped", **{"from": "-x", "to": "b", "reason": "auth"}),
        None,
        finished_after_s=None,
    )
    assert found is not None
    argv = substituted(("send", "--title={title}", "{text}", "{event}"), found)
    assert argv == [
        "send",
        "--title=fallbackd: failed over",
        " -x is unavailable (auth); continuing with b.",
        "failed_over",
    ]
