from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import Failing, Peer, answering, serving

from fallbackd_client.cli import completions
from fallbackd_client.cli.completions import words_of

ANSWERS = {
    "health": {
        "health": {
            "codex": {"state": "broken", "reason": "auth"},
            "a b": {"state": "healthy"},
            "$(reboot)": {"state": "healthy"},
            "-x": {"state": "healthy"},
            "open\nrouter": {"state": "healthy"},
        }
    },
    "delegation.list": {
        "lines": [
            {"delegation": "d2", "state": "running", "active": "codex", "session": "s\x1b[31m1"},
            {"delegation": "d1", "state": "failed", "requested": "gemini"},
        ]
    },
    "session.list": {"sessions": [{"session": "s1", "current": "codex"}]},
    "rpc.discover": {"methods": [{"name": "status", "summary": "At a glance."}]},
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("backends", [("codex", "broken, auth")]),
        ("delegations", [("d2", "running, codex, s1"), ("d1", "failed, gemini")]),
        ("sessions", [("s1", "codex")]),
        ("methods", [("status", "At a glance.")]),
        ("nosuch", []),
    ],
)
def test_words_come_from_the_daemon_but_for_those_that_a_shell_would_quote(
    kind: str, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering(ANSWERS)):
        assert words_of(kind, str(path)) == expected


def test_keys_are_those_of_the_schema_with_the_names_that_are_configured(tmp_path: Path) -> None:
    named = {"backends": {"codex": {"env": {"A": "(set)"}}}, "chains": {"claude": [], "*": []}}
    path = tmp_path / "control.sock"
    with serving(path, answering({"config.get": {"config": named}})):
        found = dict(words_of("keys", str(path)))
    assert found["defaults.settle_s"], "it says what the key means"
    assert {"gateway.enabled", "backends.codex.model", "chains.claude", "import"} <= set(found)
    assert "backends.codex.env.A" in found
    assert not {"backends", "chains", "defaults", 'chains."*"'} & set(found)


def test_without_a_daemon_the_keys_of_every_file_are_there(tmp_path: Path) -> None:
    found = dict(words_of("keys", str(tmp_path / "none.sock")))
    assert {"defaults.settle_s", "gateway.port"} <= set(found)


@pytest.mark.parametrize("answer", [Failing(-32000), {}, {"health": None}, [[]]])
def test_answers_that_are_of_no_use_give_no_words(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"health": answer})):
        assert words_of("backends", str(path)) == []


def test_without_a_daemon_there_are_no_words(tmp_path: Path) -> None:
    assert words_of("backends", str(tmp_path / "none.sock")) == []


def test_a_daemon_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "_ANSWER_S", 0.05)

    def silent(peer: Peer) -> None:
        while peer.read() is not None:
            pass

    path = tmp_path / "control.sock"
    with serving(path, silent):
        assert words_of("backends", str(path)) == []
