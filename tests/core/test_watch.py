"""The limits of one attempt."""

import pytest
from msgspec import structs
from tests.support.playbook import Playbook, delegate, policy_of

from fallbackd.core.case import Case
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Defaults, Policy
from fallbackd.core.protocol import (
    AgentStep,
    Observation,
    Output,
    Phase,
    ProviderAnswered,
    ToolEnded,
    ToolStarted,
    Usage,
)
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Snapshot
from fallbackd.core.watch import Passed, Watch, WatchLimits, expiry, see, worse
from fallbackd.core.work.running import limits_of

LIMITS = WatchLimits(first_output_s=10, first_answer_s=30, stall_s=60, busy_stall_s=200)


def watched(*seen: tuple[float, Observation]) -> Watch:
    watch = Watch(started_at=0)
    for at, one in seen:
        watch = see(watch, one, now=at)
    return watch


def tool(key: str = "k", call: str = "c1") -> ToolStarted:
    return ToolStarted(key=key, name="bash", effects="possible", call=call)


@pytest.mark.parametrize(
    ("watch", "next_at", "reason", "detail"),
    [
        (watched(), 10, Reason.TIMEOUT, "first_output"),
        (watched((2, Output())), 30, Reason.STALLED, "first_answer"),
        (watched((2, Output()), (3, ProviderAnswered())), 63, Reason.STALLED, "silent"),
        (watched((2, tool())), 202, Reason.STALLED, "busy"),
        (watched((2, tool()), (5, ToolEnded(call="c1"))), 65, Reason.STALLED, "silent"),
        (watched((2, tool()), (5, ToolEnded(call="other"))), 205, Reason.STALLED, "busy"),
    ],
)
def test_each_limit_has_its_instant_and_its_word(
    watch: Watch, next_at: float, reason: Reason, detail: str
) -> None:
    assert expiry(watch, LIMITS, now=next_at - 0.01) == next_at
    passed = expiry(watch, LIMITS, now=next_at)
    assert isinstance(passed, Passed)
    assert (passed.reason, passed.detail) == (reason, detail)


def test_output_that_shows_no_answer_has_no_limit_for_one() -> None:
    limits = WatchLimits(
        first_output_s=10, first_answer_s=30, stall_s=60, busy_stall_s=200, shows_answer=False
    )
    assert expiry(watched((2, Output())), limits, now=40) == 62


def test_every_sign_of_life_moves_the_stall_on() -> None:
    watch = watched((1, ProviderAnswered()), (50, Phase("x")), (100, Usage(output_tokens=1)))
    assert expiry(watch, LIMITS, now=101) == 160


@pytest.mark.parametrize("steps", [19, 20, 25])
def test_twenty_identical_steps_are_a_loop(steps: int) -> None:
    watch = watched(*((one, tool()) for one in range(steps)))
    found = expiry(watch, LIMITS, now=steps)
    assert isinstance(found, Passed) == (steps >= 20)
    if isinstance(found, Passed):
        assert (found.reason, found.detail) == (Reason.STALLED, "loop")


def test_another_step_between_starts_the_count_anew() -> None:
    seen: list[tuple[float, Observation]] = [(one, tool()) for one in range(15)]
    seen.append((15, AgentStep(key="other")))
    seen += [(16 + one, tool()) for one in range(15)]
    assert not isinstance(expiry(watched(*seen), LIMITS, now=31), Passed)


def test_talking_between_identical_steps_is_no_progress() -> None:
    seen: list[tuple[float, Observation]] = []
    for one in range(20):
        seen += [(one, tool()), (one + 0.5, Output())]
    assert isinstance(expiry(watched(*seen), LIMITS, now=21), Passed)


def test_a_tool_call_is_an_answer_and_keeps_the_worst_effect() -> None:
    watch = watched(
        (1, ToolStarted(key="r", name="read", effects="none")),
        (2, ToolStarted(key="w", name="edit", effects="possible")),
        (3, ToolStarted(key="b", name="bash", effects="possible")),
    )
    assert watch.answered_at == 1
    assert watch.effects == "possible"
    assert watch.phase == "bash"
    assert worse("none", "possible") == "possible"


def limits(backend: Backend, mode: str, **defaults: object) -> WatchLimits:
    policy = Policy(
        defaults=Defaults(**defaults),  # type: ignore[arg-type]
        backends={backend.id: backend},
    )
    play = Playbook(policy_of("a")).when(delegate("d1", backend="a", mode=mode))
    case = Case(Snapshot(), policy, now=0)
    return limits_of(case, play.delegation("d1"), backend)


@pytest.mark.parametrize(
    ("kind", "loopback", "mode", "first", "stall"),
    [
        ("codex", False, "interactive", 120, 450),
        ("codex", False, "batch", 300, 450),
        ("openai-http", False, "batch", 300, 180),
        ("openai-http", True, "batch", 300, 900),
        ("hermes-api", True, "interactive", 120, 900),
    ],
)
def test_default_limits_by_kind_and_mode(
    kind: str, loopback: bool, mode: str, first: float, stall: float
) -> None:
    is_http = kind != "codex"
    own = Backend(id=BackendId("a"), kind=kind, is_http=is_http, loopback=loopback)
    found = limits(own, mode)
    assert (found.first_answer_s, found.first_output_s) == (first, first)
    assert (found.stall_s, found.busy_stall_s, found.loop_steps) == (stall, 1200, 20)


@pytest.mark.parametrize(("greets", "first"), [(True, 30), (False, 300)])
def test_an_agent_that_greets_has_a_short_limit_where_it_continues(
    greets: bool, first: float
) -> None:
    """Another one prints nothing before its provider answers, and may have to start a server."""
    own = Backend(id=BackendId("a"), kind="x", greets=greets)
    policy = Policy(backends={own.id: own})
    play = Playbook(policy_of("a")).when(delegate("d1", backend="a", mode="batch"))
    one = play.delegation("d1")
    last = structs.replace(one.attempts[-1], carried="native")
    continuing = structs.replace(one, attempts=(*one.attempts[:-1], last))
    assert limits_of(Case(Snapshot(), policy, now=0), continuing, own).first_output_s == first


def test_a_backend_s_own_limits_go_before_the_defaults() -> None:
    own = Backend(id=BackendId("a"), kind="codex", stall_s=5, busy_stall_s=6, first_answer_s=7)
    found = limits(own, "batch", stall_s=50, first_answer_s=70, first_output_s=3)
    assert (found.stall_s, found.busy_stall_s) == (5, 6)
    assert (found.first_answer_s, found.first_output_s) == (7, 3)


def test_an_answer_that_never_ends_is_over_after_the_limit_for_the_whole() -> None:
    busy = watched(*((at, ProviderAnswered()) for at in range(1, 60)))
    found = expiry(busy, structs.replace(LIMITS, total_s=60), now=60)
    assert isinstance(found, Passed)
    assert (found.reason, found.detail) == (Reason.STALLED, "total")
    assert expiry(busy, structs.replace(LIMITS, total_s=60), now=59.5) == 60
    silent = expiry(watched(), structs.replace(LIMITS, total_s=5), now=5)
    assert isinstance(silent, Passed)
    assert (silent.reason, silent.detail) == (Reason.TIMEOUT, "total")


@pytest.mark.parametrize(
    ("kind", "loopback", "own", "total"),
    [
        ("openai-http", False, None, 3600),
        ("openai-http", True, None, None),
        ("codex", False, None, None),
        ("codex", False, 1800, 1800),
        ("anthropic-http", False, 60, 60),
    ],
)
def test_the_limit_for_the_whole_is_the_backend_s_own_or_that_of_remote_apis(
    kind: str, loopback: bool, own: float | None, total: float | None
) -> None:
    is_http = kind != "codex"
    backend = Backend(
        id=BackendId("a"), kind=kind, is_http=is_http, loopback=loopback, timeout_s=own
    )
    assert limits(backend, "batch").total_s == total
