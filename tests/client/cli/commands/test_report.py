from tests.client.conftest import RunCli

ARGV = ["report", "failure", "--backend", "codex"]


def test_a_failure_is_reported_with_its_evidence(run_cli: RunCli) -> None:
    answer = {
        "failure": {"reason": "rate_limit"},
        "health": {"codex": {"state": "rate_limited"}},
        "next": {"backend": "opencode", "verdict": "chosen"},
    }
    ran = run_cli(
        [
            "report",
            "failure",
            "--backend",
            "codex",
            "--session",
            "s",
            "--lease",
            "l",
            "--file",
            "-",
            "--http-status",
            "429",
        ],
        {"report": answer},
        stdin=b"slow down",
    )
    assert ran.code == 0
    assert ran.params("report") == {
        "outcome": "failure",
        "backend": "codex",
        "session": "s",
        "lease": "l",
        "evidence": {"text": "slow down", "stream": "unknown", "http_status": 429},
    }
    assert "rate_limit" in ran.out
    assert "go on with opencode" in ran.out


def test_a_success_needs_no_evidence(run_cli: RunCli) -> None:
    ran = run_cli(["report", "success", "--backend", "codex"], {"report": {}})
    assert ran.params("report") == {"outcome": "success", "backend": "codex"}
    assert ran.out == "taken\n"


def test_a_report_without_a_backend_is_usage(run_cli: RunCli) -> None:
    assert run_cli(["report", "success"], {"report": {}}).code == 2
