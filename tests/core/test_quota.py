"""Figures of plans: which are believed, how long they count, and what follows from them."""

from typing import Any

import pytest
from tests.support.playbook import Playbook, policy_of

from fallbackd.core import views
from fallbackd.core.events import ClockStepped, QuotaSeen
from fallbackd.core.figures import FRESH_S, Figure, is_fresh, pace, runs_out_at
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend

A, B = BackendId("a"), BackendId("b")
FIVE_HOURS_S = 18_000.0
PLANS = policy_of(Backend(id=A, kind="x", quota="plan"), Backend(id=B, kind="x", quota="plan"))


def figure(play: Playbook, used_percent: float, **more: Any) -> Figure:
    given = {"window_s": FIVE_HOURS_S, "resets_at": play.wall + 9000.0, "at": play.wall, **more}
    return Figure(used_percent=used_percent, **given)


def told(play: Playbook, *figures: Figure, backend: BackendId = A) -> Playbook:
    return play.when(QuotaSeen(backend=backend, figures=figures))


def limits(play: Playbook, backend: BackendId = A) -> list[Any]:
    entry = views.health_entry(backend, play.peek(), play.policy, now=play.wall)
    shown: list[Any] = entry["limits"]
    return shown


def test_a_figure_is_shown_with_its_scope_its_source_and_its_age() -> None:
    play = Playbook(PLANS)
    told(play, figure(play, 63.0, source="headers"))
    (one,) = limits(play.at(60))
    assert (one["used_percent"], one["scope"], one["source"]) == (63.0, "quota:plan", "headers")
    assert (one["age_s"], one["fresh"]) == (60.0, True)


def test_backends_that_share_a_plan_share_its_figures_but_not_those_of_a_model_or_a_key() -> None:
    play = Playbook(PLANS)
    told(
        play, figure(play, 63.0), figure(play, 99.0, model="m"), figure(play, 98.0, credential="k")
    )
    assert [one["used_percent"] for one in limits(play, B)] == [63.0]
    assert {one["scope"] for one in limits(play)} == {"quota:plan", "model:a/m", "credential:a/k"}


@pytest.mark.parametrize(
    "lie",
    [
        {"used_percent": -5.0},
        {"used_percent": 1e9},
        {"used_percent": float("nan")},
        {"window_s": 0.0},
        {"window_s": 1e12},
        {"resets_at": 5.0},
        {"resets_at": 1e12},
    ],
)
def test_a_figure_that_cannot_be_true_is_refused(lie: dict[str, float]) -> None:
    play = Playbook(PLANS)
    told(play, figure(play, **{"used_percent": 50.0, **lie}))
    assert limits(play) == []


def test_a_later_figure_replaces_an_earlier_one_and_never_the_other_way_round() -> None:
    play = Playbook(PLANS)
    told(play, figure(play, 63.0))
    told(play, figure(play, 10.0, at=play.wall - 50.0))
    told(play, figure(play, 64.0, at=play.wall + 1.0))
    assert [one["used_percent"] for one in limits(play)] == [64.0]


def test_an_old_figure_is_shown_as_old_and_one_of_a_window_that_is_over_is_not_shown() -> None:
    play = Playbook(PLANS)
    told(play, figure(play, 63.0))
    assert [one["fresh"] for one in limits(play.at(FRESH_S + 1))] == [False]
    assert limits(play.at(9001)) == []


def test_the_pace_of_a_window_says_until_when_it_lasts() -> None:
    half = Figure(used_percent=80.0, window_s=18_000.0, resets_at=18_000.0, at=9000.0)
    assert pace(half) == 32.0
    assert runs_out_at(half) == 9000.0 + 20.0 / 32.0 * 3600.0
    slow = Figure(used_percent=40.0, window_s=18_000.0, resets_at=18_000.0, at=9000.0)
    assert runs_out_at(slow) is None
    begun = Figure(used_percent=2.0, window_s=18_000.0, resets_at=18_000.0, at=60.0)
    assert (pace(begun), runs_out_at(begun)) == (None, None)


def test_figures_move_with_a_clock_that_was_set() -> None:
    play = Playbook(PLANS)
    told(play, figure(play, 63.0))
    play.when(ClockStepped(by_s=86_400.0))
    (kept,) = play.peek().meters[A].figures
    assert is_fresh(kept, now=play.wall + 86_400.0)
