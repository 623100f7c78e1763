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


def test_the_next_one_is_told_with_its_credential_and_lease(run_cli: RunCli) -> None:
    answer = {
        "next": {"backend": "acme", "verdict": "chosen", "model": "m", "credential": "home"},
        "lease": {"id": "l2", "generation": 4, "expires_at": 1.0},
    }
    ran = run_cli([*ARGV, "--http-status", "429", "--next-lease"], {"report": answer})
    assert ran.params("report")["next_lease"] is True
    assert "go on with acme, model m, credential home, lease l2, generation 4" in ran.out
