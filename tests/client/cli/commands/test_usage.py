import re
import time

from tests.client.conftest import RunCli


def test_usage_is_a_table_with_its_caps(run_cli: RunCli) -> None:
    row = {
        "backend": "codex",
        "period": "hour",
        "attempts": 3,
        "failures": 1,
        "input_tokens": 10,
        "output_tokens": 20,
        "cost_usd": 0.25,
        "cap": 50.0,
        "unit": "calls",
    }
    ran = run_cli(
        ["usage", "--session", "s1", "--backend", "codex", "--since", "1767268800"],
        {"usage": {"usage": [row]}},
    )
    assert re.search(r"^codex +hour +3 +1 +10 +20 +0\.2500 +50 calls$", ran.out, re.M)
    assert ran.params("usage") == {"session": "s1", "backend": "codex", "since_at": 1767268800}


def test_nothing_used_is_said(run_cli: RunCli) -> None:
    assert run_cli(["usage"], {"usage": {"usage": []}}).out == "nothing used\n"


def test_a_duration_means_so_long_ago(run_cli: RunCli) -> None:
    before_at = time.time()
    ran = run_cli(["usage", "--since", "1h30m"], {"usage": {"usage": []}})
    assert before_at - 5400 <= ran.params("usage")["since_at"] <= time.time() - 5400
