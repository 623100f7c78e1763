from tests.client.conftest import RunCli


def test_a_cancelled_delegation_is_said_and_done(run_cli: RunCli) -> None:
    cancelled = {"delegation": "d1", "state": "cancelled"}
    ran = run_cli(["cancel", "d1"], {"delegation.cancel": cancelled})
    assert (ran.code, ran.out) == (0, "d1 cancelled\n")
    assert ran.params("delegation.cancel") == {"delegation": "d1"}


def test_what_is_stopped_may_be_named_by_its_request_or_its_session(run_cli: RunCli) -> None:
    cancelled = {"delegation": "d1", "state": "cancelled"}
    for flag, name in (("--request-id", "request_id"), ("--session", "session")):
        ran = run_cli(["cancel", flag, "x"], {"delegation.cancel": cancelled})
        assert ran.code == 0
        assert ran.params("delegation.cancel") == {name: "x"}
    assert run_cli(["cancel"], {}).code == 2
    assert run_cli(["cancel", "d1", "--session", "x"], {}).code == 2
