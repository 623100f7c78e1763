"""Which delegations get a window of tmux, and what is said where one gets none."""

from tests.core.test_decide_admit import policy_of
from tests.support.playbook import Playbook, delegate, succeeded

from fallbackd.core.decision import OpenWindow
from fallbackd.core.ids import DelegationId


def windows(play: Playbook) -> list[OpenWindow]:
    return [one for one in play.decision.effects if isinstance(one, OpenWindow)]


def test_nobody_gets_a_window_who_did_not_ask_for_one() -> None:
    play = Playbook(policy_of("a")).when(delegate("d1", backend="a", has_tmux=True))
    assert windows(play) == []
    assert play.delegation("d1").tmux_window is None


def test_a_window_has_the_name_of_its_delegation() -> None:
    play = Playbook(policy_of("a", tmux=True)).when(delegate("d1", backend="a", has_tmux=True))
    assert windows(play) == [OpenWindow(delegation=DelegationId("d1"), most=16)]
    assert play.delegation("d1").tmux_window == "fallbackd:d1"


def test_without_the_program_there_is_a_warning() -> None:
    play = Playbook(policy_of("a", tmux=True)).when(delegate("d1", backend="a"))
    assert windows(play) == []
    assert "not installed" in play.delegation("d1").warnings[0]


def test_more_than_may_be_open_have_none_until_one_has_ended() -> None:
    play = Playbook(policy_of("a", tmux=True, tmux_windows=1))
    play.when(delegate("d1", backend="a", has_tmux=True))
    play.when(delegate("d2", backend="a", has_tmux=True))
    assert windows(play) == []
    assert "tmux_windows" in play.delegation("d2").warnings[0]
    play.when(succeeded("d1.1")).when(delegate("d3", backend="a", has_tmux=True))
    assert len(windows(play)) == 1
