import json
import re
from typing import Any

import pytest
from tests.client.conftest import RunCli

ONE = {
    "health": {"codex": {"state": "broken", "reason": "manual", "detail": "by hand", "count": 1}}
}


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("health", {"action": "list"}),
        ("health list", {"action": "list"}),
        ("health list --only unhealthy", {"action": "list", "only": "unhealthy"}),
        ("health get codex", {"action": "get", "target": "codex"}),
        (
            "health mark codex rate_limit --ttl 60",
            {"action": "mark", "target": "codex", "reason": "rate_limit", "ttl_s": 60},
        ),
        (
            "health mark codex --reason words --ttl-s 0 --note n",
            {"action": "mark", "target": "codex", "reason": "words", "ttl_s": 0, "note": "n"},
        ),
        ("health clear", {"action": "clear"}),
        ("health clear quota:plan", {"action": "clear", "target": "quota:plan"}),
        ("health pause codex --note n", {"action": "pause", "target": "codex", "note": "n"}),
        ("health resume codex", {"action": "resume", "target": "codex"}),
    ],
)
def test_each_action_reaches_the_daemon(run_cli: RunCli, argv: str, wanted: dict[str, Any]) -> None:
    ran = run_cli(argv.split(), {"health": ONE})
    assert ran.code == 0
    assert ran.params("health") == wanted


def test_global_flags_stand_behind_the_action_too(run_cli: RunCli) -> None:
    ran = run_cli(["health", "list", "--json"], {"health": ONE})
    assert json.loads(ran.out) == ONE


def test_the_table_shows_state_and_words(run_cli: RunCli) -> None:
    ran = run_cli(["health"], {"health": ONE})
    assert re.search(r"^codex +broken +1 +manual: by hand$", ran.out, re.M)


@pytest.mark.parametrize(
    ("cleared", "words"),
    [(["codex", "gemini"], "cleared: codex, gemini"), ([], "nothing to clear")],
)
def test_clearing_says_what_it_cleared(run_cli: RunCli, cleared: list[str], words: str) -> None:
    ran = run_cli(["health", "clear"], {"health": {"cleared": cleared}})
    assert words in ran.out


@pytest.mark.parametrize("argv", ["health mark", "health pause", "health nosuch", "health list -x"])
def test_a_wrong_action_is_usage(run_cli: RunCli, argv: str) -> None:
    assert run_cli(argv.split(), {"health": ONE}).code == 2


def test_credentials_are_shown_by_label_and_said_once(run_cli: RunCli) -> None:
    out = {"state": "rate_limited", "reason": "usage_limit", "count": 1}
    entry = {
        "state": "healthy",
        "credentials": [{"label": "work", **out}, {"label": "home", "state": "healthy"}],
        "scopes": [
            {"scope": "credential:api.example/work", **out},
            {"scope": "credential:api.example/work+model:m", **out},
        ],
    }
    ran = run_cli(["health", "get", "acme"], {"health": {"health": {"acme": entry}}})
    lines = [line.split("  ")[0] for line in ran.out.splitlines()[1:]]
    assert lines == [
        "acme",
        "· credential work",
        "· credential home",
        "· credential:api.example/work+model:m",
    ]
