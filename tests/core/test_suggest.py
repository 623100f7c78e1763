"""Which backend suits a task, and how long it may take."""

import pytest

from fallbackd.config import profiles
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.records import Meter
from fallbackd.core.routing.suggest import (
    Suggestion,
    Task,
    described,
    duration,
    eta_s,
    suggest,
)

NOW = 1_800_000_000.0
BACKENDS, _ = profiles.built_in({"HERMES_API_KEY": "set"})
BUILT_IN = Policy(backends=BACKENDS, chains=profiles.chains(BACKENDS))
NO_CLAUDE = {BackendId("claude"): "broken"}


def asked(
    policy: Policy = BUILT_IN,
    *,
    size: str | None = None,
    scope: str | None = None,
    complexity: str | None = None,
    goal: str = "g",
    out: dict[str, str] | None = None,
    used: dict[BackendId, Meter] | None = None,
) -> Suggestion:
    states = {**NO_CLAUDE, **{BackendId(name): state for name, state in (out or {}).items()}}
    task = Task(goal=goal, size=size, complexity=complexity, scope=scope)
    return suggest(policy, task, states, used or {}, now=NOW, missing={BackendId("claude")})


def test_points_of_size_complexity_and_scope_add_up() -> None:
    found = asked(size="large", scope="refactor", complexity="high", out={"codex": "broken"})
    assert found.backend == "gemini"
    assert found.scores == {"opencode": 70, "gemini": 75, "numasec": 50, "hermes-api": 50}
    assert found.was_fallback


def test_a_small_task_of_code_goes_to_opencode() -> None:
    found = asked(size="small", scope="code", complexity="low")
    assert found.backend == "opencode"
    assert found.scores == {
        "opencode": 100,
        "codex": 70,
        "gemini": 70,
        "numasec": 50,
        "hermes-api": 50,
    }
    assert found.eta_s == 180
    assert not found.was_fallback


def test_extreme_research_goes_to_gemini() -> None:
    found = asked(size="medium", scope="research", complexity="extreme")
    assert found.backend == "gemini"
    assert found.scores[BackendId("gemini")] == 105
    assert found.eta_s == 2700


def test_security_goes_to_numasec() -> None:
    found = asked(size="medium", scope="security")
    assert found.backend == "numasec"
    assert found.scores[BackendId("numasec")] == 85


def test_of_equal_ones_the_first_declared_is_taken() -> None:
    found = asked(size="medium", scope="misc", complexity="medium")
    assert found.backend == "opencode"
    assert set(found.scores.values()) == {50}


def test_nobody_available_is_said_with_the_reasons() -> None:
    every = dict.fromkeys(("opencode", "codex", "gemini", "numasec", "hermes-api"), "broken")
    found = asked(out=every)
    assert found.backend is None
    assert found.eta_s is None
    assert found.available == ()
    assert "codex: broken" in found.reason


def test_cooldown_is_usable_and_the_rest_is_not() -> None:
    found = asked(
        out={"opencode": "cooldown", "codex": "rate_limited", "gemini": "paused", "numasec": "x"}
    )
    assert found.available == ("opencode", "hermes-api")


def capped(*, enforced: bool) -> Policy:
    one = Backend(
        id=BackendId("a"),
        kind="generic-cli",
        hourly_cap=50 if enforced else None,
        shown_cap=50,
        scores={"base": 99},
    )
    other = Backend(id=BackendId("b"), kind="generic-cli")
    return Policy(backends={one.id: one, other.id: other})


def meter(*, attempts: int, minutes_ago: int = 1, ratios: tuple[float, float] = (0, 0)) -> Meter:
    minute = int(NOW // 60) - minutes_ago
    return Meter(backend=BackendId("a"), starts=((minute, attempts, 0),), ratios=ratios)


def test_only_an_enforced_cap_leaves_a_backend_out() -> None:
    used = {BackendId("a"): meter(attempts=50)}
    found = asked(capped(enforced=True), used=used)
    assert found.backend == "b"
    assert found.caps[BackendId("a")].used == 50
    assert found.was_fallback
    found = asked(capped(enforced=False), used=used)
    assert found.backend == "a"
    assert (found.caps[BackendId("a")].used, found.caps[BackendId("a")].cap) == (50, 50)


def test_a_cap_counts_the_last_hour_only() -> None:
    found = asked(capped(enforced=True), used={BackendId("a"): meter(attempts=50, minutes_ago=61)})
    assert found.backend == "a"


def test_a_cap_of_tokens_counts_tokens() -> None:
    used = Meter(backend=BackendId("gemini"), starts=((int(NOW // 60), 3, 12_000),))
    found = asked(used={BackendId("gemini"): used})
    assert (found.caps[BackendId("gemini")].used, found.caps[BackendId("gemini")].unit) == (
        12_000,
        "tokens",
    )


def test_a_goal_that_no_context_holds_leaves_the_backend_out() -> None:
    found = asked(goal="x" * 4 * 150_000)
    assert "opencode" not in found.available
    assert "codex" in found.available


def test_what_is_not_suggestible_or_switched_off_is_never_offered() -> None:
    hidden = Backend(id=BackendId("h"), kind="generic-cli", suggestible=False)
    off = Backend(id=BackendId("o"), kind="generic-cli", enabled=False)
    found = asked(Policy(backends={hidden.id: hidden, off.id: off}))
    assert found.backend is None
    assert found.reason == "No backend that can be suggested is configured."


@pytest.mark.parametrize(
    ("size", "complexity", "seconds"),
    [
        ("tiny", "low", 36),
        ("small", "medium", 300),
        ("small", None, 300),
        ("unknown", "unknown", 300),
        (None, None, 300),
        ("medium", "high", 1620),
        ("LARGE", "medium", 3600),
        ("xlarge", "low", 4320),
        ("xlarge", "extreme", 14_400),
    ],
)
def test_the_estimate_follows_size_and_complexity(
    size: str | None, complexity: str | None, seconds: float
) -> None:
    assert eta_s(Task(size=size, complexity=complexity)) == pytest.approx(seconds)


def project(tokens: int, **out: str) -> Suggestion:
    return suggest(
        BUILT_IN,
        Task(goal="g", project_tokens=tokens),
        {**NO_CLAUDE, **{BackendId(name): state for name, state in out.items()}},
        {},
        now=NOW,
    )


def test_a_project_goes_to_a_context_that_it_fits() -> None:
    assert set(project(100_000).scores) >= {"opencode", "codex", "gemini"}
    assert set(project(150_000).scores) == {"codex", "gemini", "hermes-api"}
    assert set(project(500_000).scores) == {"gemini", "hermes-api"}


def test_a_project_that_fits_nowhere_goes_to_the_largest_context() -> None:
    every = {"hermes-api": "broken"}
    assert set(project(5_000_000, **every).scores) == {"gemini"}
    assert set(project(5_000_000, gemini="broken", **every).scores) == {"codex"}


def test_measured_times_correct_the_estimate_up_to_four_hours() -> None:
    task = Task(size="small")
    assert eta_s(task, meter(attempts=1, ratios=(4.0, 2.0))) == pytest.approx(600)
    long_one = Task(size="xlarge", complexity="extreme")
    assert eta_s(long_one, meter(attempts=1, ratios=(4.0, 2.0))) == 14_400


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (-5, "0s"),
        (0.4, "0s"),
        (59, "59s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (3605, "1h"),
        (7380, "2h 3m"),
        (90_000, "1d 1h"),
        (86_400 + 60, "1d"),
    ],
)
def test_durations_show_their_two_largest_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("goal", "backend"),
    [
        ("fix the typo in the README", "opencode"),
        ("a security audit of the login form", "numasec"),
        ("describe what is in this screenshot", "gemini"),
        ("transcribe the audio of the meeting", "gemini"),
        ("summarise this huge log", "gemini"),
        ("reason about why the two queues deadlock", "codex"),
        ("rename the class in a multi-file change", "codex"),
        ("write a test for the parser", "opencode"),
        ("debug the failing build", "opencode"),
        ("", "opencode"),
    ],
)
def test_the_words_of_the_goal_say_who_suits(goal: str, backend: str) -> None:
    assert asked(goal=goal).backend == backend


def test_words_that_are_given_go_before_those_of_the_goal() -> None:
    found = asked(goal="a tiny security audit", size="large", scope="code")
    assert found.backend == "codex"
    assert found.estimate_s == 3600


def test_a_word_counts_where_it_begins_one() -> None:
    assert "scope:test +" not in asked(goal="the latest results").reason


@pytest.mark.parametrize(
    ("goal", "size", "scope", "complexity"),
    [
        ("complex refactor", None, "refactor", "high"),
        ("fix a typo", "tiny", "code", "low"),
        ("Security-audit of the whole service", "xlarge", "security", None),
        ("a simple, quick comparison", "small", "research", "low"),
        ("sing", None, None, None),
        ("", None, None, None),
    ],
)
def test_words_of_the_goal_stand_for_what_was_not_given(
    goal: str, size: str | None, scope: str | None, complexity: str | None
) -> None:
    task = described(Task(goal=goal))
    assert (task.size, task.scope, task.complexity) == (size, scope, complexity)
