"""`list`: what is shown of delegations, and what is asked of the daemon for it."""

import re
import time
from typing import Any

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.commands.list import directory, list_view
from fallbackd_client.cli.ids import shortened
from fallbackd_client.cli.output import Style, display_width

RUNNING = {
    "delegation": "d2222222222222222222",
    "state": "running",
    "active": "codex",
    "cwd": "/srv/shop",
    "prompt": "add a cart",
}
ENDED = {
    "delegation": "d1111111111111111111",
    "state": "succeeded",
    "served_by": "claude",
    "active": "claude",
    "prompt": "explain \x1b[31mthis",
}


CALLS = {"exchange.list": {"exchanges": [], "known": 0}}


def answer(params: dict[str, Any]) -> dict[str, Any]:
    at = time.time()
    if params["ended"]:
        return {"lines": [{**ENDED, "created_at": at - 99, "ended_at": at - 7200}]}
    return {"lines": [{**RUNNING, "created_at": at - 300}]}


@pytest.mark.parametrize("name", ["list", "ps", "ls", "history"])
def test_running_work_is_listed_before_what_has_ended(run_cli: RunCli, name: str) -> None:
    ran = run_cli([name], {"delegation.list": answer, **CALLS})
    assert ran.code == 0
    heading, first, second = ran.out.splitlines()
    assert heading.split() == ["ID", "STATE", "AGE", "BACKEND", "DIRECTORY", "PROMPT"]
    assert re.fullmatch(r"d2222222 +running +5m +codex +/srv/shop +add a cart", first)
    assert re.fullmatch(r"d1111111 +succeeded +2h +claude +- +explain this", second)


def test_the_daemon_is_asked_for_what_the_flags_name(run_cli: RunCli, tmp_path: Any) -> None:
    argv = ["list", "--backend", "codex", "--cwd", str(tmp_path), "--since", "2h"]
    before_at = time.time()
    ran = run_cli(argv, {"delegation.list": {"lines": []}})
    assert ran.out == "nothing matches\n"
    running, ended = [one["params"] for one in ran.server.requests]
    same = {"brief": True, "backend": "codex", "cwd": str(tmp_path), "limit": 500}
    assert running == {**same, "ended": False}
    since_at = ended.pop("since_at")
    assert ended == {**same, "ended": True}
    assert before_at - 7200 <= since_at <= time.time() - 7200


@pytest.mark.parametrize(("state", "has_ended"), [("running", False), ("failed", True)])
def test_a_state_is_looked_for_where_it_can_be(
    run_cli: RunCli, state: str, *, has_ended: bool
) -> None:
    ran = run_cli(["list", "--state", state], {"delegation.list": {"lines": []}})
    (asked,) = [one["params"] for one in ran.server.requests]
    assert (asked["state"], asked["ended"]) == (state, has_ended)


def test_pages_are_followed_by_their_cursor(run_cli: RunCli) -> None:
    def paged(params: dict[str, Any]) -> dict[str, Any]:
        if not params["ended"]:
            return {"lines": []}
        if "cursor" not in params:
            return {"lines": [{**ENDED, "ended_at": time.time()}], "next_cursor": "1.5:d1"}
        assert params["cursor"] == "1.5:d1"
        return {"lines": [{**ENDED, "delegation": "d0", "ended_at": time.time()}]}

    ran = run_cli(["list", "--all"], {"delegation.list": paged, **CALLS})
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["d1111111", "d0"]


def test_more_than_twenty_ended_ones_are_said_and_not_shown(run_cli: RunCli) -> None:
    many = [{**ENDED, "delegation": f"d{n:019x}", "ended_at": time.time()} for n in range(21)]
    listed = {"delegation.list": lambda params: {"lines": many if params["ended"] else []}}
    lines = run_cli(["list"], {**listed, **CALLS}).out.splitlines()
    assert (len(lines), lines[-1]) == (22, "more: fallbackd-client list --all")


@pytest.mark.parametrize(
    ("known", "words"), [(1, "1 gateway call is known"), (500, "500 gateway calls are known")]
)
def test_gateway_calls_are_counted_behind_the_delegations(
    run_cli: RunCli, known: int, words: str
) -> None:
    last = f"{words}: fallbackd-client gateway list"
    calls = {"exchange.list": {"exchanges": [], "known": known}}
    lines = run_cli(["list"], {"delegation.list": answer, **calls}).out.splitlines()
    assert (len(lines), lines[-1]) == (4, last)
    ran = run_cli(["list"], {"delegation.list": {"lines": []}, **calls})
    assert ran.out.splitlines() == ["no delegations", last]


@pytest.mark.parametrize("argv", [["--json"], ["--backend", "codex"], ["--since", "2h"]])
def test_gateway_calls_are_no_part_of_a_choice_or_of_the_document(
    run_cli: RunCli, argv: list[str]
) -> None:
    ran = run_cli(["list", *argv], {"delegation.list": {"lines": []}})
    assert ran.code == 0
    assert "gateway" not in ran.out
    assert set(ran.server.methods()) == {"delegation.list"}


def test_a_directory_that_is_none_is_a_mistake_of_the_command_line(run_cli: RunCli) -> None:
    ran = run_cli(["list", "--cwd", "/nosuch"], {})
    assert (ran.code, ran.err) == (2, "fallbackd-client: --cwd: /nosuch is not a directory\n")


@pytest.mark.parametrize("width", [80, 40])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = [
        {
            **RUNNING,
            "cwd": "/srv/" + "子" * 40,
            "prompt": "日本語 " * 40,
            "created_at": time.time(),
        },
        {**ENDED, "created_at": time.time(), "ended_at": time.time()},
    ]
    shown = list_view({"delegations": lines}, Style(enabled=False, width=width)).splitlines()
    assert max(display_width(line) for line in shown) == width
    called = list_view({"delegations": []}, Style(enabled=False, width=width), calls=500)
    assert max(display_width(line) for line in called.splitlines()) <= width
    starts = {
        display_width(line[: line.index(word)])
        for line, word in zip(shown, ("STATE", "running", "succeeded"), strict=True)
    }
    assert len(starts) == 1


def test_a_long_directory_keeps_its_end() -> None:
    assert directory("/a/very/long/way/to/project", 12) == "…/to/project"
    assert directory("/srv/shop", 12) == "/srv/shop"


def test_ids_are_as_long_as_they_have_to_be() -> None:
    assert shortened(["d1234567890", "d9"]) == ["d1234567", "d9"]
    assert shortened(["d12345678901", "d12345678902"]) == ["d12345678901", "d12345678902"]
    assert shortened(["d1234567890123456789"], is_part=True) == ["d12345678901"]


def test_what_was_cancelled_while_it_waited_is_listed_with_its_prompt(run_cli: RunCli) -> None:
    one = {
        "delegation": "d1",
        "state": "cancelled",
        "created_at": 1.0,
        "ended_at": 2.0,
        "blocked_by": "d0",
        "prompt": "the second prompt",
    }
    listed = {"delegation.list": lambda asked: {"lines": [one] if asked["ended"] else []}}
    ran = run_cli(["list", "--all"], {**listed, **CALLS})
    assert "the second prompt" in ran.out
    assert "waits for" not in ran.out
