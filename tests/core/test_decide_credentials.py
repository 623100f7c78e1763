"""Playbooks: a look at a credential's source finds it missing, there again, or another one."""

from typing import Any

from tests.support.playbook import Playbook, delegate, fail, failed, policy_of

from fallbackd.core.events import CredentialSeen, HealthMarked, LoginAnswered, Reported
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason

A = BackendId("a")
POOL = policy_of(
    Backend(id=A, kind="x", model="m", credentials=("k1", "k2")), "b", chains={"a": ["b"]}
)
K1 = "credential:a/k1"


def seen(label: str = "k1", **more: Any) -> CredentialSeen:
    return CredentialSeen(backend=A, credential=label, **more)


def missing() -> CredentialSeen:
    return seen(reason=Reason.NOT_CONFIGURED, detail="the variable K1 is not set")


def test_one_that_is_missing_is_skipped_and_no_attempt_is_spent_on_it() -> None:
    play = Playbook(POOL).when(missing(), delegate("x", backend="a"))
    assert play.delegation("x").attempts[0].credential == "k2"
    assert play.outage(K1).detail == "the variable K1 is not set"


def test_a_backend_whose_only_one_is_missing_is_not_configured_and_free_to_skip() -> None:
    only = policy_of(Backend(id=A, kind="x", credentials=("k1",)), "b", chains={"a": ["b"]})
    play = Playbook(only).when(missing(), delegate("x", backend="a"))
    found = play.delegation("x")
    assert [one.backend for one in found.attempts] == ["b"]
    assert (found.verdicts[0].verdict, found.hops[0].trigger) == ("not_configured", "preemptive")


def test_one_that_is_there_again_is_used_without_a_trial() -> None:
    play = Playbook(POOL).when(missing(), seen())
    assert play.health(K1).outage is None


def test_what_is_seen_again_and_again_keeps_its_beginning_and_does_not_add_up() -> None:
    play = Playbook(POOL).when(missing())
    since_at = play.outage(K1).since_at
    play.at(550).when(missing())
    assert (play.outage(K1).since_at, play.outage(K1).count) == (since_at, 1)
    assert play.outage(K1).until_at == play.wall + 600


def test_another_one_ends_what_the_old_one_was_marked_for_and_is_tried_by_one() -> None:
    play = Playbook(POOL).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.AUTH, detail="revoked")))
    play.at(9e6).when(seen())
    assert play.seen(K1).state == "broken"  # the same as ever
    play.when(seen(changed=True))
    assert (play.seen(K1).state, play.seen(K1).unproven) == ("healthy", True)
    play.when(delegate("y", backend="a"), delegate("z", backend="a"))
    found = [play.delegation(one).attempts[0] for one in ("y", "z")]
    assert [(one.credential, one.trial) for one in found] == [("k1", True), ("k2", False)]


def test_another_one_has_limits_of_its_own() -> None:
    play = Playbook(POOL)
    failure = fail(Reason.RATE_LIMIT, wait_s=7200)
    play.when(Reported(outcome="failure", backend=A, credential="k1", model="m", failure=failure))
    assert play.seen(f"{K1}+model:m").state == "rate_limited"
    play.when(seen(changed=True))
    assert play.seen(f"{K1}+model:m").state == "healthy"


def test_what_a_person_said_stands() -> None:
    play = Playbook(POOL).when(HealthMarked(target=K1), seen(changed=True), missing())
    assert play.outage(K1).reason is Reason.MANUAL


def test_a_look_at_what_is_no_longer_configured_changes_nothing() -> None:
    play = Playbook(POOL).when(seen("gone", reason=Reason.NOT_CONFIGURED))
    assert play.decision.changes == ()


# --- a login that is answered outside of the daemon ----------------------------------------------

PLANS = policy_of(Backend(id=A, kind="x", quota="plan"), "b", chains={"a": ["b"]})
FIVE_DAYS_S = 5 * 86_400.0


def limited() -> Playbook:
    stated = fail(Reason.USAGE_LIMIT, wait_s=FIVE_DAYS_S)
    return Playbook(PLANS).when(delegate("x", backend="a")).when(failed("x.1", stated))


def answered(play: Playbook, *, ago_s: float = 0.0) -> Playbook:
    return play.when(LoginAnswered(backends=(A,), at=play.wall - ago_s))


def test_a_login_that_was_answered_since_is_tried_by_one_delegation() -> None:
    play = limited()
    assert play.seen("quota:plan").state == "rate_limited"
    answered(play.at(3_000))
    assert (play.seen("quota:plan").state, play.seen("quota:plan").unproven) == ("healthy", True)
    play.when(delegate("y", backend="a"), delegate("z", backend="a"))
    assert [play.delegation(one).attempts[0].backend for one in "yz"] == ["a", "b"]


def test_an_answer_from_before_the_limit_says_nothing() -> None:
    play = answered(limited().at(3_000), ago_s=3_001)
    assert play.seen("quota:plan").state == "rate_limited"


def test_figures_that_lag_behind_cost_one_trial_an_hour() -> None:
    play = answered(limited().at(3_000)).when(delegate("y", backend="a"))
    play.when(failed("y.1", fail(Reason.USAGE_LIMIT, at=play.wall, wait_s=FIVE_DAYS_S)))
    answered(play.at(6_500))
    assert play.seen("quota:plan").state == "rate_limited"
    answered(play.at(6_700))
    assert play.seen("quota:plan").unproven


def test_an_answer_ends_neither_a_persons_mark_nor_what_is_no_limit() -> None:
    play = limited().when(HealthMarked(target="quota:plan", reason="usage_limit", ttl_s=9e5))
    answered(play.at(3_000))
    assert play.seen("quota:plan").state == "rate_limited"
    play = Playbook(PLANS).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.AUTH)))
    answered(play.at(300))
    assert play.seen("backend:a").state == "broken"
