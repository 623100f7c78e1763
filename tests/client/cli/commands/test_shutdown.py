from tests.client.conftest import RunCli


def test_it_says_how_much_still_runs_and_how_to_end_it(run_cli: RunCli) -> None:
    ran = run_cli(["shutdown"], {"daemon.shutdown": {"state": "draining", "running": 1}})
    assert (ran.code, ran.out) == (
        0,
        "draining; waiting for 1 delegation to end\n"
        "Cancel it instead of waiting: fallbackd-client shutdown --stop-work\n",
    )


def test_where_nothing_runs_it_ends_at_once(run_cli: RunCli) -> None:
    ran = run_cli(["shutdown"], {"daemon.shutdown": {"state": "draining", "running": 0}})
    assert ran.out == "shutting down; nothing runs\n"
