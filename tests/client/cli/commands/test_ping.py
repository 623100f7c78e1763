import re

from tests.client.conftest import RunCli


def test_a_daemon_that_answers_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["ping"], {"daemon.ping": {"version": "1.2", "pid": 7, "at": 1.0}})
    assert ran.code == 0
    assert re.fullmatch(r"fallbackd 1\.2, pid 7, running, answered in [\d.]+ ms\n", ran.out)
