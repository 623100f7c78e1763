"""Playbooks: calls of one session that overlap, each with a turn that its caller keeps."""

from typing import Any

from tests.support.playbook import Playbook, fail, policy_of

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import HealthCleared, HealthMarked, Reported, ResolveRequested
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.reasons import Reason

ABC = policy_of("a", "b", "c")
S, LEASE = SessionId("s"), AttemptId("lease-1")
CHAIN = (Entry(backend=BackendId("a")), Entry(backend=BackendId("b")))


class Caller:
    """One call of session `s` at a time; others of it may be under way."""

    def __init__(self, play: Playbook, chain: tuple[Entry, ...] = CHAIN, **asked: Any) -> None:
        self.play, self.asked = play, {"session": S, "chain": chain, **asked}
        event = ResolveRequested(**self.asked, lease=LEASE, keeps_turn=True)
        found = play.when(event).decision.answer
        assert isinstance(found, Resolution)
        self.found, self.turn, self.began_at = found, found.turn, play.wall

    @property
    def backend(self) -> str | None:
        return self.found.backend

    def says(self, outcome: str, failure: Failure | None = None) -> ReportAnswer:
        event = Reported(
            **self.asked,
            outcome=outcome,  # type: ignore[arg-type]
            failure=failure,
            backend=BackendId(self.found.backend or ""),
            model=self.found.model,
            credential=self.found.credential,
            lease=self.found.lease_id,
            turn=self.turn,
            started_at=self.began_at,
            next_lease=LEASE,
        )
        answer = self.play.when(event).decision.answer
        assert isinstance(answer, ReportAnswer)
        if answer.next is not None:
            self.found, self.turn, self.began_at = answer.next, answer.turn, self.play.wall
        return answer

    def fails(self, reason: Reason, *, wait_s: float | None = None) -> str | None:
        """Returns who is asked next."""
        self.says("failure", fail(reason, at=self.play.now, wait_s=wait_s))
        return self.backend


def test_what_one_call_has_tried_is_not_tried_for_another() -> None:
    play = Playbook(ABC)
    first = Caller(play)
    assert first.fails(Reason.OVERLOADED) == "b"
    play.when(HealthCleared(target="a"))
    assert Caller(play).backend == "a"


def test_consent_of_one_call_is_none_for_another() -> None:
    policy = policy_of("a", Backend(id=BackendId("b"), kind="codex", cost="metered"))
    play = Playbook(policy)
    play.when(HealthMarked(target="a", reason="rate_limit"))
    assert Caller(play, allow_metered=True).backend == "b"
    other = Caller(play)
    assert other.backend is None
    assert [one.verdict for one in other.found.candidates] == ["rate_limited", "consent"]
    assert Caller(play, allow_metered=True).backend == "b"


def test_a_failure_counts_whatever_the_session_asks_for_by_then() -> None:
    play = Playbook(ABC)
    large = Caller(play, chain=(Entry(backend=BackendId("a"), model="large"), CHAIN[1]))
    Caller(play, chain=(Entry(backend=BackendId("a"), model="small"), CHAIN[1]))
    assert large.fails(Reason.RATE_LIMIT, wait_s=900.0) == "b"
    assert play.seen("a").state == "rate_limited"


def test_each_of_two_failures_of_one_candidate_counts() -> None:
    play = Playbook(ABC)
    first, second = Caller(play), Caller(play)
    assert first.fails(Reason.OVERLOADED) == "b"
    assert second.fails(Reason.AUTH) == "b"
    assert play.seen("a").state == "broken"


def test_the_session_moves_once_however_many_of_its_calls_fail() -> None:
    play = Playbook(ABC)
    calls = [Caller(play) for _ in range(3)]
    assert [one.fails(Reason.OVERLOADED) for one in calls] == ["b", "b", "b"]
    session = play.session("s")
    assert [(one.from_backend, one.to_backend) for one in session.hops] == [("a", "b")]
    assert session.current == "b"
    assert session.turn is None


def test_a_session_keeps_its_credential_while_that_is_free() -> None:
    keys = ("k1", "k2", "k3")
    a = Backend(
        id=BackendId("a"), kind="codex", credentials=keys, credential_strategy="round_robin"
    )
    play = Playbook(policy_of(a, "b"))
    first = Caller(play)
    first.says("success")
    own = first.found.credential
    assert {Caller(play).found.credential for _ in range(4)} == {own}
    others = {Caller(play, session=SessionId("other")).found.credential for _ in range(3)}
    assert others == set(keys)
    last = Caller(play)
    last.fails(Reason.RATE_LIMIT, wait_s=900.0)
    assert last.backend == "a"
    assert last.found.credential != own
