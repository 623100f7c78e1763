"""Candidates, their order, and a verdict for each."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import T0, entry, fail, policy_of

from fallbackd.core import health, meter
from fallbackd.core.failures import Failure
from fallbackd.core.health import Health, Pause
from fallbackd.core.ids import AttemptId, BackendId, ScopeId, SessionId
from fallbackd.core.policy import REASONS, Backend, Entry, Policy, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Meter, Session
from fallbackd.core.routing.candidates import candidates_for, find_role
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved, resolve

POLICY = policy_of("a", "b", "c")


def out(scope: str, failure: Failure, *, at: float = 0.0) -> Health:
    return health.fail(
        None,
        ScopeId(scope),
        failure,
        REASONS[failure.reason],
        started_at=T0 + at - 1,
        now=T0 + at,
        luck=0.5,
    )


def look(
    *records: Health,
    at: float = 1.0,
    policy: Policy = POLICY,
    chain: tuple[str | Entry, ...] = ("a", "b", "c"),
    meters: dict[BackendId, Meter] | None = None,
    **request: object,
) -> Resolved:
    return resolve(
        tuple(entry(one) for one in chain),
        Request(**request),  # type: ignore[arg-type]
        policy,
        {one.scope: one for one in records},
        meters or {},
        now=T0 + at,
    )


def words(found: Resolved) -> list[str]:
    return [one.verdict for one in found.verdicts]


def chosen(found: Resolved) -> str | None:
    return None if found.choice is None else found.choice.backend.id


def test_the_first_healthy_one_is_chosen() -> None:
    found = look()
    assert chosen(found) == "a"
    assert words(found) == ["chosen", "healthy", "healthy"]


LIMITED = out("backend:a", fail(Reason.RATE_LIMIT))
PAUSED = Health(scope=ScopeId("backend:a"), pause=Pause(since_at=T0, note="holiday"))


@pytest.mark.parametrize(
    ("record", "at", "word", "reason"),
    [
        (LIMITED, 1, "rate_limited", "rate_limit"),
        (out("backend:a", fail(Reason.MANUAL)), 1, "broken", "manual"),
        (out("backend:a", fail(Reason.NOT_INSTALLED)), 1, "not_installed", "not_installed"),
        (out("backend:a", fail(Reason.NOT_CONFIGURED)), 1, "not_configured", "not_configured"),
        (PAUSED, 1, "paused", "holiday"),
        (LIMITED, 400, "cooldown", "rate_limit"),
    ],
)
def test_a_candidate_that_is_out_is_passed_over_with_its_reason(
    record: Health, at: float, word: str, reason: str
) -> None:
    found = look(record, at=at)
    assert chosen(found) == "b"
    assert found.verdicts[0].verdict == word
    assert found.verdicts[0].reason == reason


def test_healthy_goes_before_cooldown_and_unproven_counts_as_healthy() -> None:
    late = out("backend:b", fail(Reason.CRASH))
    found = look(LIMITED, late, at=400)
    assert chosen(found) == "b"
    assert found.choice is not None
    assert found.choice.trial_scopes == ("backend:b",)
    assert words(look(LIMITED, late, at=400, chain=("c", "b"))) == ["chosen", "unproven"]


def test_cooldown_is_used_under_a_trial_where_nothing_healthy_is_left() -> None:
    found = look(LIMITED, at=400, chain=("a",))
    assert words(found) == ["chosen"]
    assert found.choice is not None
    assert found.choice.trial_scopes == ("backend:a",)


def test_a_scope_under_trial_is_left_to_its_trial() -> None:
    late = out("backend:a", fail(Reason.CRASH))
    leased = health.lease(late, AttemptId("d9.1"), now=T0 + 100)
    found = look(leased, at=101, chain=("a",))
    assert chosen(found) is None
    assert words(found) == ["in_trial"]
    assert found.in_trial
    assert found.verdicts[0].until_at == T0 + 400
    ran_out = health.lease(late, AttemptId("lease-1"), now=T0 + 100, expires_at=T0 + 700)
    assert words(look(ran_out, at=699, chain=("a",))) == ["in_trial"]
    assert words(look(ran_out, at=701, chain=("a",))) == ["chosen"]


def test_one_leased_scope_of_several_unproven_ones_is_enough() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", quota="q"))
    quota = out("quota:q", fail(Reason.CRASH))
    leased = health.lease(out("backend:a", fail(Reason.CRASH)), AttemptId("d9.1"), now=T0 + 900)
    found = look(leased, quota, at=901, policy=policy, chain=("a",))
    assert words(found) == ["in_trial"]
    assert found.verdicts[0].until_at == T0 + 1200


def test_the_worst_scope_decides() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", model="m", quota="q", provider="p"), "b"
    )
    for scope in ("backend:a", "model:a/m", "quota:q", "provider:p"):
        record = out(scope, fail(Reason.USAGE_LIMIT))
        assert chosen(look(record, policy=policy, chain=("a", "b"))) == "b", scope


def test_two_backends_on_one_account_are_out_together() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", quota="q"),
        Backend(id=BackendId("b"), kind="x", quota="q"),
        "c",
    )
    found = look(out("quota:q", fail(Reason.USAGE_LIMIT)), policy=policy)
    assert words(found) == ["rate_limited", "rate_limited", "chosen"]


def test_what_was_tried_is_not_tried_again() -> None:
    assert words(look(tried=frozenset({"a"}))) == ["tried", "chosen", "healthy"]
    chain = (Entry(backend=BackendId("a"), model="x"), Entry(backend=BackendId("a"), model="y"))
    assert words(look(chain=chain, tried=frozenset({"a|x"}))) == ["tried", "chosen"]


def test_the_same_provider_model_and_credential_fail_together() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", provider="p", model="m"),
        Backend(id=BackendId("b"), kind="x", provider="p", model="m"),
        Backend(id=BackendId("c"), kind="x", provider="p", model="n"),
    )
    found = look(policy=policy, tried=frozenset({"a"}), same_as_failed=frozenset({"p|m|None"}))
    assert words(found) == ["tried", "same_as_failed", "chosen"]


def test_two_programs_without_a_known_model_are_not_the_same() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", provider="p"),
        Backend(id=BackendId("b"), kind="x", provider="p"),
    )
    found = look(policy=policy, chain=("a", "b"), same_as_failed=frozenset({"p|None|None"}))
    assert words(found) == ["chosen", "healthy"]


def test_disabled_and_unknown_ones_say_so() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", enabled=False), "b")
    found = look(policy=policy, chain=("nobody", "a", "b"))
    assert words(found) == ["not_configured", "disabled", "chosen"]


def test_a_context_that_is_too_small_is_passed_over() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", context_tokens=64_000),
        Backend(id=BackendId("b"), kind="x", context_tokens=1_000_000),
        "c",
    )
    found = look(policy=policy, prompt_tokens=125_516)
    assert words(found) == ["context", "chosen", "healthy"]
    assert "context too large" in (found.verdicts[0].reason or "")
    found = look(policy=policy, larger_than=64_000)
    assert words(found) == ["context", "chosen", "healthy"]
    assert words(look(policy=policy, prompt_tokens=64_000))[0] == "chosen"


def test_an_enforced_cap_leaves_a_backend_out_until_there_is_room() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", hourly_cap=2), "b")
    used = meter.started(None, BackendId("a"), now=T0)
    assert (
        words(look(policy=policy, chain=("a", "b"), meters={BackendId("a"): used}))[0] == "chosen"
    )
    used = meter.started(used, BackendId("a"), now=T0)
    found = look(policy=policy, chain=("a", "b"), meters={BackendId("a"): used})
    assert words(found) == ["budget", "chosen"]
    verdict = found.verdicts[0]
    assert (verdict.state, verdict.reason) == ("rate_limited", "local_budget")
    assert verdict.until_at is not None


def test_a_malformed_request_goes_to_another_provider_only() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", provider="p"),
        Backend(id=BackendId("b"), kind="x", provider="p"),
        Backend(id=BackendId("c"), kind="x", provider="q"),
    )
    found = look(policy=policy, tried=frozenset({"a"}), not_provider="p")
    assert words(found) == ["tried", "same_as_failed", "chosen"]


def test_without_a_network_only_candidates_on_this_machine_are_used() -> None:
    policy = policy_of("a", Backend(id=BackendId("b"), kind="x", loopback=True))
    found = look(policy=policy, chain=("a", "b"), local_only=True)
    assert words(found) == ["local_network", "chosen"]


def test_affinity_goes_before_order_but_not_before_state() -> None:
    assert chosen(look(preferred=BackendId("c"))) == "c"
    limited = out("backend:c", fail(Reason.RATE_LIMIT))
    assert chosen(look(limited, preferred=BackendId("c"))) == "a"
    assert chosen(look(limited, at=400, preferred=BackendId("c"))) == "a"


def test_the_earliest_return_and_the_earliest_stated_one_are_told() -> None:
    found = look(
        out("backend:a", fail(Reason.RATE_LIMIT, wait_s=500)),
        out("backend:b", fail(Reason.CRASH)),
        out("backend:c", fail(Reason.AUTH, detail="x")),
    )
    assert found.retry_at == T0 + 60
    assert found.stated_at == T0 + 500


def test_one_early_trial_where_nobody_is_usable() -> None:
    records = [out(f"backend:{one}", fail(Reason.RATE_LIMIT)) for one in "abc"]
    assert chosen(look(*records, at=59, last_resort=True)) is None
    found = look(*records, at=60, last_resort=True)
    assert chosen(found) == "a"
    assert found.choice is not None
    assert found.choice.trial_scopes == ("backend:a",)
    assert found.choice.entry == entry("a")
    assert chosen(look(*records, at=60, last_resort=True, tried=frozenset({"a"}))) == "b"
    leased = health.lease(records[0], AttemptId("d1.1"), now=T0 + 60)
    assert chosen(look(leased, *records[1:], at=61, last_resort=True)) == "b"


def test_no_early_trial_where_somebody_is_usable_or_the_cap_is_reached() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", hourly_cap=1), "b")
    used = {BackendId("a"): meter.started(None, BackendId("a"), now=T0)}
    found = look(LIMITED, at=100, policy=policy, chain=("a",), meters=used, last_resort=True)
    assert chosen(found) is None
    assert chosen(look(LIMITED, at=100, chain=("a", "b"), last_resort=True)) == "b"


def test_no_early_trial_of_a_stated_time_within_the_hour() -> None:
    stated = out("backend:a", fail(Reason.USAGE_LIMIT, wait_s=90_000))
    assert chosen(look(stated, at=3599, chain=("a",), last_resort=True)) is None
    assert chosen(look(stated, at=3600, chain=("a",), last_resort=True)) == "a"


TWO_KEYS = Backend(id=BackendId("a"), kind="x", credentials=("k1", "k2"))


def test_the_first_usable_credential_is_taken() -> None:
    policy = policy_of(TWO_KEYS)
    first = look(policy=policy, chain=("a",)).choice
    assert first is not None
    assert first.credential == "k1"
    limited = out("credential:a/k1", fail(Reason.RATE_LIMIT))
    second = look(limited, policy=policy, chain=("a",)).choice
    assert second is not None
    assert second.credential == "k2"
    late = look(limited, at=950, policy=policy, chain=("a",)).choice
    assert late is not None
    assert late.credential == "k1"


def test_a_credential_under_trial_or_in_cooldown_is_left_for_a_better_one() -> None:
    policy = policy_of(TWO_KEYS)
    limited = out("credential:a/k1", fail(Reason.RATE_LIMIT))
    leased = health.lease(limited, AttemptId("d9.1"), now=T0 + 1000)
    for record, at in ((leased, 1001), (limited, 400)):
        found = look(record, at=at, policy=policy, chain=("a",)).choice
        assert found is not None
        assert found.credential == "k2"


# --- candidates --------------------------------------------------------------------------------


CHAINS = policy_of(
    "a",
    "b",
    "c",
    "d",
    chains={"a": ["b", "c"], "*": ["d"], "empty": []},
    roles={"build": ["c", "a"], "bare": [], "Build-Agent2": ["b"]},
)


def ids(**asked: object) -> list[str]:
    named = {"backend": None, "role": None, "chain": None, **asked}
    found = candidates_for(CHAINS, **named)  # type: ignore[arg-type]
    return [one.backend for one in found]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"backend": "a"}, ["a", "b", "c"]),
        ({"backend": "b"}, ["b", "d"]),
        ({}, ["d"]),
        ({"role": "build"}, ["c", "a"]),
        ({"role": "build", "backend": "a"}, ["a", "c"]),
        ({"role": "build", "backend": "b"}, ["b", "c", "a"]),
        ({"role": "bare", "backend": "a"}, ["a", "b", "c"]),
        ({"role": "nobody", "backend": "a"}, ["a", "b", "c"]),
        ({"role": "nobody"}, ["d"]),
        ({"chain": (entry("d"),), "backend": "a", "role": "build"}, ["a", "d"]),
        ({"chain": (), "backend": "a"}, ["a", "b", "c"]),
    ],
)
def test_the_first_chain_that_exists_and_is_not_empty_follows_the_requested_one(
    asked: dict[str, object], expected: list[str]
) -> None:
    assert ids(**asked) == expected


def test_a_session_without_other_words_starts_from_its_original() -> None:
    session = Session(
        session=SessionId("s"),
        original=BackendId("a"),
        current=BackendId("b"),
        created_at=T0,
        last_used_at=T0,
    )
    assert ids(session=session) == ["a", "b", "c"]
    assert ids(session=session, role="build") == ["c", "a"]


def test_a_model_that_the_caller_names_belongs_to_the_first_candidate() -> None:
    found = candidates_for(CHAINS, backend=BackendId("a"), role=None, chain=None, model="m")
    assert [(one.backend, one.model) for one in found] == [("a", "m"), ("b", None), ("c", None)]
    found = candidates_for(CHAINS, backend=None, role="build", chain=None, model="m")
    assert [(one.backend, one.model) for one in found] == [("c", "m"), ("a", None)]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("build", "build"),
        ("Build", "build"),
        ("BUILD_AGENT", "build"),
        ("build agent", "build"),
        ("coder", None),
        ("agent", None),
        ("", None),
    ],
)
def test_role_names_are_matched_without_case_and_punctuation(name: str, found: str | None) -> None:
    policy = policy_of("a", roles={"build": ["a"]})
    role = find_role(policy, name)
    assert (None if role is None else role.name) == found


def test_two_normalised_matches_are_none_but_an_exact_one_wins() -> None:
    policy = policy_of("a", "b", roles={"Build-Agent": ["a"], "build_agent": ["b"]})
    assert find_role(policy, "BUILD") is None
    exact = find_role(policy, "build_agent")
    assert exact is not None
    assert exact.chain == (entry("b"),)


def test_a_role_that_is_switched_off_has_no_candidate_but_the_first() -> None:
    role = Role(name="build", chain=(entry("c"), entry("d")), enabled=False)
    policy = structs.replace(
        CHAINS, roles={"build": role, "bare": Role(name="bare", enabled=False)}
    )

    def order(**asked: Any) -> list[str]:
        found = candidates_for(policy, **{"backend": None, "chain": None, **asked})
        return [str(one.backend) for one in found]

    assert order(role="build") == ["c"]
    assert order(role="build", backend=BackendId("a")) == ["a"]
    assert order(role="build", chain=(entry("b"), entry("a"))) == ["b"]
    assert order(role="bare", backend=BackendId("a")) == ["a"]


def test_the_built_in_chain_of_all_agents_is_for_what_names_nothing() -> None:
    policy = policy_of("a", "b", chains={"*": ["a", "b"]})
    built_in = structs.replace(policy, any_is_built_in=True)
    role = {"r": Role(name="r")}

    def order(policy: Policy, **asked: Any) -> list[str]:
        found = candidates_for(policy, **{"backend": None, "role": None, "chain": None, **asked})
        return [str(one.backend) for one in found]

    for one in (policy, built_in):
        assert order(one) == ["a", "b"]
        assert order(one, role="unknown") == ["a", "b"]
    assert order(policy, backend=BackendId("b")) == ["b", "a"]
    assert order(built_in, backend=BackendId("b")) == ["b"]
    assert order(structs.replace(policy, roles=role), role="r") == ["a", "b"]
    assert order(structs.replace(built_in, roles=role), role="r") == []
