import re

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
        ["usage", "--session", "s1", "--backend", "codex", "--since", "5"],
        {"usage": {"usage": [row]}},
    )
    assert re.search(r"^codex +hour +3 +1 +10 +20 +0\.2500 +50 calls$", ran.out, re.M)
    assert ran.params("usage") == {"session": "s1", "backend": "codex", "since_at": 5}


def test_nothing_used_is_said(run_cli: RunCli) -> None:
    assert run_cli(["usage"], {"usage": {"usage": []}}).out == "nothing used\n"
