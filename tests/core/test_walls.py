"""Plans that are nearly used up: new work goes elsewhere, and batch work leaves a reserve."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import (
    Playbook,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    starts,
    succeeded,
)

from fallbackd.core.events import QuotaSeen
from fallbackd.core.figures import FRESH_S, Figure
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.work.standby import terms

A, B = BackendId("a"), BackendId("b")
HOUR_S = 3600.0
RESETS_S = 2 * HOUR_S


def walled(at_percent: float | None = None, **defaults: Any) -> Policy:
    first = Entry(backend=A, at_percent=at_percent)
    made = policy_of("a", "b", chains={"*": [first, Entry(backend=B)]}, **defaults)
    return structs.replace(made, any_is_built_in=False)


def used(play: Playbook, percent: float, name: BackendId = A, **more: Any) -> Playbook:
    given = {"window_s": 18_000.0, "resets_at": play.wall + RESETS_S, "at": play.wall, **more}
    return play.when(QuotaSeen(backend=name, figures=(Figure(used_percent=percent, **given),)))


def runs_on(play: Playbook, name: str = "d1", **asked: Any) -> str:
    play.when(delegate(name, **asked))
    attempts = play.delegation(name).attempts
    return str(attempts[0].backend) if attempts else play.delegation(name).state


# --- at_percent --------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "backend"), [(84.0, "a"), (85.0, "b"), (120.0, "b")])
def test_new_work_moves_before_the_wall(percent: float, backend: str) -> None:
    play = used(Playbook(walled(85.0)), percent)
    assert runs_on(play) == backend


def test_what_explains_it_names_the_figure_and_the_key() -> None:
    play = used(Playbook(walled(85.0)), 91.0)
    runs_on(play)
    verdict = play.delegation("d1").verdicts[0]
    assert verdict.reason == "91 % of its plan is used: second choice (at_percent)"
    assert any(
        one.verdicts and one.verdicts[0].reason == verdict.reason for one in play.memory.stories
    )


def test_a_wall_is_second_choice_and_not_closed() -> None:
    play = used(Playbook(walled(85.0)), 99.0)
    play.when(delegate("d1")).then(starts("d1.1", "b"))
    play.when(started("d1.1"), failed("d1.1", fail(Reason.USAGE_LIMIT, wait_s=HOUR_S)))
    play.then(starts("d1.2", "a"))


@pytest.mark.parametrize(
    "told",
    [
        {"window_s": 60.0, "resets_at": None},
        {"model": "other"},
        {"credential": "another"},
        {"used_percent": -3.0},
        {"used_percent": 1e9},
    ],
)
def test_a_figure_of_something_else_or_a_lie_changes_nothing(told: dict[str, Any]) -> None:
    play = Playbook(walled(85.0))
    percent = told.pop("used_percent", 99.0)
    assert runs_on(used(play, percent, **told)) == "a"


def test_an_old_or_unknown_figure_changes_nothing() -> None:
    assert runs_on(Playbook(walled(85.0))) == "a"
    play = used(Playbook(walled(85.0)), 99.0).at(FRESH_S + 1)
    assert runs_on(play) == "a"
    play = used(Playbook(walled(85.0)), 99.0, resets_at=Playbook(walled()).wall + 100).at(101)
    assert runs_on(play) == "a"


def test_a_session_that_has_begun_there_stays() -> None:
    play = Playbook(walled(85.0))
    play.when(delegate("d1", session="s"), started("d1.1"), succeeded("d1.1"))
    assert runs_on(used(play, 99.0), "d2", session="s") == "a"
    assert runs_on(play, "d3", session="other") == "b"


def test_work_that_runs_is_not_moved() -> None:
    play = Playbook(walled(85.0)).when(delegate("d1"), started("d1.1")).then(starts("d1.1", "a"))
    used(play, 99.0).then()


def test_a_plan_that_is_shared_is_one_wall() -> None:
    policy = walled(85.0)
    shared = {name: structs.replace(one, quota="plan") for name, one in policy.backends.items()}
    other = Backend(id=BackendId("c"), kind="codex", quota="plan")
    play = Playbook(structs.replace(policy, backends={**shared, other.id: other}))
    assert runs_on(used(play, 99.0, other.id)) == "b"


# --- the reserve of interactive work -----------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "percent", "backend"),
    [
        ("batch", 79.0, "a"),
        ("batch", 80.0, "b"),
        ("interactive", 80.0, "a"),
        ("interactive", 99.0, "a"),
    ],
)
def test_batch_work_leaves_a_reserve(mode: str, percent: float, backend: str) -> None:
    play = used(Playbook(walled(reserve_percent=20.0)), percent)
    assert runs_on(play, mode=mode) == backend


def test_batch_work_stops_where_every_plan_is_at_its_reserve() -> None:
    play = used(used(Playbook(walled(reserve_percent=20.0)), 85.0), 90.0, B)
    play.when(delegate("d1", mode="batch")).then(answers("d1"))
    one = play.delegation("d1")
    assert one.state == "refused"
    assert one.retry_at == play.wall + RESETS_S
    assert "the rest is for interactive work (reserve_percent)" in (one.verdicts[0].reason or "")


def test_batch_work_that_waits_goes_on_when_more_is_left() -> None:
    play = used(used(Playbook(walled(reserve_percent=20.0)), 85.0), 90.0, B)
    waits = terms(when_available=True, now=play.wall)
    play.when(delegate("d1", mode="batch", standby=waits)).then()
    assert play.delegation("d1").on_standby
    used(play.at(60), 10.0).then(starts("d1.1", "a"))


# --- early trials ------------------------------------------------------------------------------


def spent(play: Playbook) -> Playbook:
    play.when(delegate("d1", backend="a", failover=False), started("d1.1"))
    play.when(failed("d1.1", fail(Reason.USAGE_LIMIT, wait_s=5 * HOUR_S)))
    play.then_whatever()
    return play


def test_a_fresh_low_figure_is_a_reason_for_one_early_trial() -> None:
    play = spent(Playbook(walled())).at(60)
    assert play.seen("a").state == "rate_limited"
    used(play, 3.0)
    play.when(delegate("d2"), delegate("d3")).then(starts("d2.1", "a"), starts("d3.1", "b"))
    assert play.delegation("d2").attempts[0].trial
    again = fail(Reason.USAGE_LIMIT, at=61, wait_s=5 * HOUR_S)
    play.at(61).when(started("d2.1"), failed("d2.1", again)).then_whatever()
    used(play.at(300), 3.0)
    assert play.seen("a").state == "rate_limited"


@pytest.mark.parametrize("percent", [80.0, 100.0])
def test_a_figure_that_is_not_low_is_none(percent: float) -> None:
    play = used(spent(Playbook(walled())).at(60), percent)
    assert play.seen("a").state == "rate_limited"


def test_a_low_window_beside_a_spent_one_is_no_reason() -> None:
    play = used(spent(Playbook(walled())), 100.0, window_s=604_800.0).at(60)
    used(play, 3.0)
    assert play.seen("a").state == "rate_limited"


def test_a_figure_from_before_the_limit_is_no_reason() -> None:
    play = spent(Playbook(walled()).at(100))
    used(play, 3.0, at=play.wall - 50)
    assert play.seen("a").state == "rate_limited"
