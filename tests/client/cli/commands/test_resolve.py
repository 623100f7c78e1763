import re

from tests.client.conftest import RunCli
from tests.client.scripted import Failing

CANDIDATES = [
    {"backend": "codex", "verdict": "rate_limited", "state": "rate_limited", "reason": "429"},
    {"backend": "twin", "verdict": "rate_limited", "reason": "429", "scope": "quota:plan"},
    {"backend": "opencode", "model": "m", "tier": "api", "verdict": "chosen", "state": "healthy"},
]


def test_the_choice_is_shown_with_all_verdicts(run_cli: RunCli) -> None:
    answer = {
        "backend": "opencode",
        "tier": "api",
        "trigger": "preemptive",
        "candidates": CANDIDATES,
        "lease": {"id": "l1", "generation": 3, "expires_at": 1.0},
    }
    ran = run_cli(["resolve", "codex", "--lease", "--chain", "a, b"], {"resolve": answer})
    assert ran.code == 0
    assert ran.params("resolve") == {"backend": "codex", "lease": True, "chain": ["a", "b"]}
    assert ran.out.startswith("opencode, tier api, trigger preemptive, lease l1, generation 3\n")
    assert re.search(r"^codex +rate_limited +rate_limited +429$", ran.out, re.M)
    assert re.search(r"^twin +rate_limited +429 \(quota:plan\)$", ran.out, re.M)
    assert re.search(r"^opencode \[m\] \(api\) +chosen +healthy$", ran.out, re.M)


def test_a_refusal_ends_in_75_with_the_verdicts(run_cli: RunCli) -> None:
    data = {"retry_at": 1.0, "candidates": CANDIDATES[:1]}
    ran = run_cli(["resolve"], {"resolve": Failing(-32003, "nobody is available", data)})
    assert ran.code == 75
    assert "nobody is available" in ran.err
    assert re.search(r"^codex +rate_limited", ran.err, re.M)
