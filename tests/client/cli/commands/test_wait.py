import json

from tests.client.conftest import RunCli
from tests.client.scripted import Failing

RUNNING = {"delegation": "d1", "state": "running"}
DONE = {"delegation": "d1", "state": "succeeded", "text": "ok"}


def test_it_waits_and_prints_the_answer(run_cli: RunCli) -> None:
    ran = run_cli(["wait", "d1"], {"delegation.get": RUNNING, "delegation.wait": DONE})
    assert (ran.code, ran.out) == (0, "ok\n")


def test_what_has_ended_is_not_waited_for(run_cli: RunCli) -> None:
    ran = run_cli(["wait", "d1"], {"delegation.get": {**DONE, "state": "failed"}})
    assert ran.code == 1
    assert ran.server.methods() == ["delegation.get"]


def test_a_wait_that_is_over_ends_in_75(run_cli: RunCli) -> None:
    unfinished = {**RUNNING, "wait_over": True}
    answers = {"delegation.get": RUNNING, "delegation.wait": unfinished}
    ran = run_cli(["wait", "d1", "--wait-for", "2", "--json"], answers)
    assert ran.code == 75
    assert json.loads(ran.out) == unfinished
    assert ran.params("delegation.wait") == {"delegation": "d1", "timeout_s": 2}


def test_an_unknown_delegation_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["wait", "d9"], {"delegation.get": Failing(-32001, "no delegation d9")})
    assert ran.code == 2
    assert "no delegation d9" in ran.err
