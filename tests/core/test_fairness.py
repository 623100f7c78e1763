"""Places on the host are shared out by client, and work beyond all measure is refused."""

import pytest
from tests.core.test_decide_admit import policy_of, rejected
from tests.support.playbook import Playbook, delegate, starts, succeeded
from tests.support.playbook import started as begun

from fallbackd.core.decision import StartAttempt
from fallbackd.core.work.plan import NESTED_PLACES, turns


def queued(play: Playbook) -> list[str]:
    return [str(one) for one in turns(play.peek().active)]


def started(play: Playbook) -> list[str]:
    """Delegations whose attempts were started since the last time, in order."""
    return [
        str(one.attempt).partition(".")[0]
        for one in play.then_whatever()
        if isinstance(one, StartAttempt)
    ]


def test_a_client_with_much_work_does_not_keep_another_one_waiting() -> None:
    play = Playbook(policy_of("a", max_running=2))
    for number in range(6):
        play.when(delegate(f"m{number}", backend="a", client="much"))
    play.at(1).when(delegate("o0", backend="a", client="other"))
    play.when(delegate("o1", backend="a", client="other"))
    assert started(play) == ["m0", "m1"]
    assert queued(play) == ["o0", "o1", "m2", "m3", "m4", "m5"]
    play.when(succeeded("m0.1"))
    assert started(play)[-1] == "o0"
    assert queued(play)[0] in ("o1", "m2")
    play.when(succeeded("m1.1"))
    assert started(play)[-1] == "m2"
    play.when(succeeded("o0.1"))
    assert started(play)[-1] == "o1"


def test_a_client_that_is_alone_has_every_place_in_the_order_in_which_it_asked() -> None:
    play = Playbook(policy_of("a", max_running=3))
    for number in range(5):
        play.when(delegate(f"d{number}", backend="a", client="one"))
    assert started(play) == ["d0", "d1", "d2"]
    play.when(succeeded("d1.1"), succeeded("d0.1"))
    assert [one for one in started(play) if one in ("d3", "d4")] == ["d3", "d4"]


def test_work_from_inside_of_work_is_not_kept_waiting_by_its_own_parent() -> None:
    play = Playbook(policy_of("a", max_running=1)).when(delegate("p", backend="a"))
    play.when(delegate("k", backend="a", parent="p"))
    play.then(starts("p.1", "a"), starts("k.1", "a"))
    play.when(delegate("l", backend="a", parent="p"))
    assert play.delegation("l").state == "queued"
    assert len([one for one in play.peek().active.values() if one.running]) == NESTED_PLACES


def test_more_than_may_be_unfinished_is_refused() -> None:
    play = Playbook(policy_of("a", max_running=1, max_unfinished=2))
    play.when(delegate("d0", backend="a"), delegate("d1", backend="a"))
    assert rejected(play) is None
    play.when(delegate("d2", backend="a"))
    assert rejected(play) == "limit"
    rejection = play.decision.rejection
    assert rejection is not None
    assert rejection.data == {"unfinished": 2, "limit": 2}
    play.when(succeeded("d0.1")).when(delegate("d3", backend="a"))
    assert rejected(play) is None


@pytest.mark.parametrize("client", ["one", None])
def test_one_client_leaves_room_for_others(client: str | None) -> None:
    play = Playbook(policy_of("a", max_running=1, max_unfinished=9, max_unfinished_of_client=2))
    play.when(delegate("d0", backend="a", client=client))
    play.when(delegate("d1", backend="a", client=client))
    play.when(delegate("d2", backend="a", client=client))
    assert rejected(play) == "limit"
    play.when(delegate("d3", backend="a", client="another"))
    assert rejected(play) is None


def test_the_work_inside_of_one_delegation_counts_as_that_of_one_client() -> None:
    play = Playbook(policy_of("a", max_unfinished=9, max_unfinished_of_client=2))
    play.when(delegate("d0", backend="a", cwd="/0", client="one"), begun("d0.1"))
    play.when(delegate("d1", backend="a", cwd="/1", client="its own", parent="d0"), begun("d1.1"))
    play.when(delegate("d2", backend="a", cwd="/2", client="another", parent="d1"))
    assert {play.delegation(name).client for name in ("d1", "d2")} == {"d0"}
    play.when(delegate("d3", backend="a", cwd="/3", client="a third", parent="d0"))
    assert rejected(play) == "limit"
    play.when(delegate("d4", backend="a", cwd="/4", client="one"))
    assert rejected(play) is None
