from tests.client.conftest import RunCli


def test_a_cancelled_delegation_is_said_and_done(run_cli: RunCli) -> None:
    cancelled = {"delegation": "d1", "state": "cancelled"}
    ran = run_cli(["cancel", "d1"], {"delegation.cancel": cancelled})
    assert (ran.code, ran.out) == (0, "d1 cancelled\n")
    assert ran.params("delegation.cancel") == {"delegation": "d1"}
