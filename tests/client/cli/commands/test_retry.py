from tests.client.conftest import RunCli
from tests.client.scripted import Failing


def test_the_answer_of_the_new_delegation_is_printed(run_cli: RunCli) -> None:
    ran = run_cli(
        ["retry", "d1"],
        {
            "delegation.retry": {"delegation": "d2", "state": "queued"},
            "delegation.wait": {"delegation": "d2", "state": "succeeded", "text": "four"},
        },
    )
    assert (ran.code, ran.out) == (0, "four\n")
    asked = ran.params("delegation.retry")
    assert asked["delegation"] == "d1"
    assert asked["request_id"]
    assert ran.params("delegation.wait")["delegation"] == "d2"


def test_why_it_cannot_be_repeated_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["retry", "d1"], {"delegation.retry": Failing(-32602, "d1 has not ended")})
    assert (ran.code, ran.err) == (2, "fallbackd-client: d1 has not ended\n")
