from tests.client.conftest import RunCli


def test_it_says_how_much_still_runs(run_cli: RunCli) -> None:
    ran = run_cli(["drain"], {"daemon.drain": {"state": "draining", "running": 2}})
    assert (ran.code, ran.out) == (0, "draining, 2 running\n")
