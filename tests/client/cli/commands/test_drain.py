import time

from tests.client.conftest import RunCli
from tests.client.scripted import Failing

LINE = {"delegation": "d1111111111111111111", "state": "running", "active": "codex"}


def test_it_says_what_it_waits_for(run_cli: RunCli) -> None:
    line = {**LINE, "phase": "writing", "created_at": time.time() - 65}
    ran = run_cli(
        ["drain"], {"daemon.drain": {"state": "draining", "running": 2, "waits_for": [line]}}
    )
    assert ran.code == 0
    first, _, _, row, more, _, last = ran.out.splitlines()
    assert first == "draining; waiting for 2 delegations to end"
    assert row.split() == ["d11111111111", "running", "1m", "5s", "codex", "writing"]
    assert more == "… and 1 more"
    assert last == "Accept work again: fallbackd-client undrain"


def test_calls_of_the_gateway_are_counted(run_cli: RunCli) -> None:
    ran = run_cli(["drain"], {"daemon.drain": {"state": "draining", "running": 0, "calls": 2}})
    assert ran.out.startswith("draining; waiting for 2 gateway calls to end\n")
    ran = run_cli(["shutdown"], {"daemon.shutdown": {"running": 1, "calls": 1}})
    assert ran.out.startswith("draining; waiting for 1 delegation and 1 gateway call to end\n")


def test_where_nothing_runs_it_says_so(run_cli: RunCli) -> None:
    ran = run_cli(["drain"], {"daemon.drain": {"state": "draining", "running": 0}})
    assert ran.out == "drained; nothing runs. Accept work again: fallbackd-client undrain\n"


def test_what_waits_for_a_backend_is_not_waited_for(run_cli: RunCli) -> None:
    ran = run_cli(["drain"], {"daemon.drain": {"state": "draining", "running": 0, "later": 3}})
    first, last = ran.out.splitlines()
    assert first == "3 wait for a backend or an answer, until an undrain or the next daemon"
    assert last.startswith("drained; nothing runs.")


def test_work_is_accepted_again(run_cli: RunCli) -> None:
    ran = run_cli(["undrain"], {"daemon.undrain": {"state": "running"}})
    assert (ran.code, ran.out) == (0, "accepting work\n")


def test_a_daemon_that_ends_does_not_turn_back(run_cli: RunCli) -> None:
    ran = run_cli(["undrain"], {"daemon.undrain": Failing(-32004, "it is shutting down")})
    assert (ran.code, ran.err) == (75, "fallbackd-client: it is shutting down\n")
