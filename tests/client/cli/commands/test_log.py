import json
from typing import Any

import pytest
from tests.client.conftest import RunCli

TEXTS = {"d1.1": "first\x1b[2J\n", "d1.2": "second\n"}


def piece(params: dict[str, Any]) -> dict[str, Any]:
    """Three bytes at a time, of attempts that have ended."""
    attempt = params.get("attempt") or "d1.2"
    data, offset = TEXTS[attempt].encode(), params.get("offset", 0)
    part = data[offset : offset + 3]
    return {
        "delegation": "d1",
        "attempt": attempt,
        "text": part.decode(),
        "offset": offset,
        "next_offset": offset + len(part),
        "size_bytes": len(data),
        "ended": True,
    }


def test_the_last_attempt_is_printed_whole(run_cli: RunCli) -> None:
    ran = run_cli(["log", "d1"], {"delegation.log": piece})
    assert (ran.code, ran.out) == (0, "second\n")


def test_text_is_asked_for_unless_the_bytes_are(run_cli: RunCli) -> None:
    ran = run_cli(["log", "d1"], {"delegation.log": piece})
    assert ran.params("delegation.log")["form"] == "text"
    ran = run_cli(["log", "--raw", "d1"], {"delegation.log": piece})
    assert "form" not in ran.params("delegation.log")
    assert ran.out == "second\n"


def test_output_without_any_text_is_said_to_be_there(run_cli: RunCli) -> None:
    silent = {**piece({"offset": 0}), "text": "", "next_offset": 7}
    ran = run_cli(["log", "d1"], {"delegation.log": silent})
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no text in the output; see all of it: fallbackd-client log --raw d1\n"


def test_work_that_made_no_attempt_says_so(run_cli: RunCli) -> None:
    nothing = {"delegation": "d1", "text": "", "offset": 0, "next_offset": 0, "ended": True}
    ran = run_cli(["log", "d1"], {"delegation.log": nothing})
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "there is no log: no attempt was made\n"


def test_one_attempt_can_be_named_and_is_cleaned(run_cli: RunCli) -> None:
    ran = run_cli(["log", "d1", "--attempt", "d1.1"], {"delegation.log": piece})
    assert ran.params("delegation.log")["attempt"] == "d1.1"
    assert ran.out.startswith("first")
    assert "\x1b" not in ran.out


def test_following_goes_over_to_the_next_attempt_and_ends_with_the_delegation(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd_client.cli.commands.log._POLL_S", 0.0)
    running = {"delegation": "d1", "state": "running", "attempts": [{"attempt": "d1.1"}]}
    hopped = {**running, "attempts": [{"attempt": "d1.1"}, {"attempt": "d1.2"}]}
    nothing = {**piece({"attempt": "d1.1", "offset": 99}), "next_offset": 0, "attempt": None}
    asked = []

    def follow(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        if len(asked) == 1:  # before any attempt
            return {**nothing, "ended": False}
        return piece({**params, "attempt": params.get("attempt") or "d1.1"})

    ran = run_cli(
        ["log", "-f", "d1"],
        {
            "delegation.log": follow,
            "delegation.get": [running, running, hopped, {**hopped, "state": "succeeded"}],
        },
    )
    assert ran.code == 0
    assert ran.out.startswith("first")
    assert ran.out.endswith("second\n")


def test_with_json_each_piece_is_a_line(run_cli: RunCli) -> None:
    ran = run_cli(["log", "d1", "--json"], {"delegation.log": piece})
    pieces = [json.loads(line) for line in ran.out.splitlines()]
    assert "".join(one["text"] for one in pieces) == "second\n"
