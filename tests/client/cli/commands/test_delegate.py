import json
import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.client.conftest import RunCli
from tests.client.scripted import Failing, Peer, serving
from tests.support.command import client_argv, client_environ, run_client

ACCEPTED = {"delegation": "d1", "state": "running", "created_at": 1.0, "active": "codex"}
DONE = {**ACCEPTED, "state": "succeeded", "served_by": "codex", "text": "the answer"}
HOPPED = {
    **DONE,
    "requested": "codex",
    "served_by": "opencode",
    "fallback_from": "codex",
    "fallback_reason": "rate_limit: try again in 5 minutes",
    "hops": [
        {"at": 1, "from": "codex", "to": "opencode", "trigger": "reactive", "reason": "rate_limit"}
    ],
}


def answers(end: object) -> dict[str, Any]:
    return {"delegate": ACCEPTED, "delegation.wait": end}


def test_the_answer_goes_to_standard_output_alone(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "do it"], answers(DONE))
    assert (ran.code, ran.out, ran.err) == (0, "the answer\n", "")


def test_it_waits_for_the_end_and_sends_its_directory(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_cli(["delegate", "do it", "--session", "s1", "--timeout", "60"], answers(DONE))
    sent = ran.params("delegate")
    assert sent.pop("request_id")
    assert sent == {
        "prompt": "do it",
        "session": "s1",
        "cwd": os.getcwd(),
        "wait": "accepted",
        "timeout_s": 60,
    }
    assert ran.params("delegation.wait") == {"delegation": "d1"}


def test_every_flag_reaches_its_field(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALLBACKD_DELEGATION", "d0")
    monkeypatch.setenv("FALLBACKD_ATTEMPT", "d0.1")
    argv = (
        "delegate x --backend b --role r --chain a,b --session s --cwd /tmp --model m --mode batch"
        " --wait settled --wait-s 3 --settle 2 --timeout 9 --no-failover --request-id i"
        " --on-partial fail --permissions read --differs-from gpt --env A=1 --env B=c=d"
        " --allow-metered"
    )
    ran = run_cli(argv.split(), {"delegate": DONE})
    assert ran.params("delegate") == {
        "prompt": "x",
        "backend": "b",
        "role": "r",
        "chain": ["a", "b"],
        "session": "s",
        "cwd": "/tmp",
        "model": "m",
        "mode": "batch",
        "wait": "settled",
        "wait_s": 3,
        "settle_s": 2,
        "timeout_s": 9,
        "failover": False,
        "request_id": "i",
        "on_partial": "fail",
        "permissions": "read",
        "differs_from": ["gpt"],
        "env": {"A": "1", "B": "c=d"},
        "allow_metered": True,
        "parent": "d0.1",
    }


def test_a_fallback_is_one_line_on_standard_error(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "x"], answers(HOPPED))
    assert ran.out == "the answer\n"
    assert ran.err == "codex is rate-limited; continuing with opencode.\n"


def test_a_backend_that_was_passed_over_at_once_is_named(run_cli: RunCli) -> None:
    skipped = {**ACCEPTED, "hops": [{**HOPPED["hops"][0], "trigger": "preemptive"}]}
    ran = run_cli(["delegate", "x"], {"delegate": skipped, "delegation.wait": HOPPED})
    assert ran.err == "codex is rate-limited; continuing with opencode.\n"


def test_a_fallback_says_when_the_limit_resets_where_that_was_stated(run_cli: RunCli) -> None:
    at = time.time() + 3 * 86_400
    failure = {"reason": "usage_limit", "stated_reset_at": at}
    hop = {"from": "codex", "to": "opencode", "trigger": "reactive", "reason": "usage_limit"}
    hopped = {**HOPPED, "hops": [hop], "attempts": [{"backend": "codex", "failure": failure}]}
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    ran = run_cli(["delegate", "x"], answers(hopped))
    assert ran.err == (f"codex hit its usage limit (resets {day}); continuing with opencode.\n")


def test_with_json_the_delegation_is_the_one_document(run_cli: RunCli) -> None:
    hostile = {**HOPPED, "text": "\x1b[2J\u202e"}
    ran = run_cli(["--json", "delegate", "x"], answers(hostile))
    assert json.loads(ran.out) == hostile
    assert ran.out.isascii()
    assert "\x1b" not in ran.out


def test_control_characters_of_an_answer_never_reach_a_terminal(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "x"], answers({**DONE, "text": "a\x1b]0;t\x07b\u202ec\n\td\r"}))
    assert ran.out == "abc\n\td\n"


def test_a_refusal_shows_a_verdict_for_each_and_when_to_come_back(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd_client.cli.views.now", lambda: 1_700_049_600.0)
    refused = {
        **ACCEPTED,
        "state": "refused",
        "retry_at": 1_700_049_850.0,
        "candidates": [
            {"backend": "codex", "verdict": "rate_limited", "reason": "usage_limit"},
            {"backend": "gemini", "verdict": "not_installed", "reason": "no gemini on PATH"},
        ],
    }
    ran = run_cli(["delegate", "x"], answers(refused))
    assert ran.code == 75
    assert ran.out == ""
    assert "(in 4m 10s)" in ran.err
    assert "codex      rate_limited" in ran.err
    assert "no gemini on PATH" in ran.err


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (
            {"state": "failed", "failure": {"reason": "task_failed"}},
            1,
            "task_failed",
        ),
        ({"state": "cancelled"}, 1, "cancelled"),
        ({"state": "handed_back", "handed_back": {"model": "opus"}}, 75, "with model opus"),
        (
            {
                "state": "awaiting_answer",
                "question": {"text": "use it?", "options": [{"choice": "wait", "text": "later"}]},
            },
            75,
            "wait: later",
        ),
    ],
)
def test_each_other_end_has_its_code_and_its_words(
    run_cli: RunCli, end: dict[str, Any], code: int, words: str
) -> None:
    ran = run_cli(["delegate", "x"], answers({**ACCEPTED, **end}))
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


@pytest.mark.parametrize("wait", ["accepted", "settled"])
def test_work_that_still_runs_where_asked_so_is_done(run_cli: RunCli, wait: str) -> None:
    ran = run_cli(["delegate", "x", "--wait", wait], {"delegate": ACCEPTED})
    assert (ran.code, ran.out) == (0, "d1\n")
    assert "fallbackd-client wait d1" in ran.err
    assert ran.server.methods() == ["delegate"]


def test_an_end_at_once_is_not_waited_for(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "x"], {"delegate": DONE})
    assert (ran.code, ran.out) == (0, "the answer\n")
    assert ran.server.methods() == ["delegate"]


def test_a_wait_that_is_over_ends_in_75_and_the_work_goes_on(run_cli: RunCli) -> None:
    unfinished = {**ACCEPTED, "wait_over": True}
    ran = run_cli(["--json", "delegate", "x", "--wait-for", "2s"], answers(unfinished))
    assert ran.code == 75
    assert json.loads(ran.out) == unfinished
    assert "d1 is still running. Wait again: fallbackd-client wait d1;" in ran.err
    assert ran.params("delegation.wait")["timeout_s"] == 2
    assert "delegation.cancel" not in ran.server.methods()


def test_interruption_names_the_delegation_and_leaves_it_running(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fallbackd_client.cli.ending.wait_for", interrupt)
    ran = run_cli(["delegate", "x"], answers(DONE))
    assert ran.code == 130
    assert "fallbackd-client cancel d1" in ran.err
    assert ran.server.methods() == ["delegate"]


def test_a_daemon_lost_while_waiting_is_found_again_and_nothing_runs_twice(
    run_cli: RunCli,
) -> None:
    waits = []

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "delegation.wait":
                waits.append(request)
                if len(waits) == 1:
                    return
                peer.answer(request, DONE)
            else:
                peer.answer(request, ACCEPTED)

    ran = run_cli(["delegate", "x"], script)
    assert (ran.code, ran.out) == (0, "the answer\n")
    assert ran.server.methods().count("delegate") == 1


def test_a_daemon_that_stays_away_leaves_the_name_of_the_work(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd_client.cli.main._RECONNECT_LONG_S", 0.0)

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None and request["method"] == "delegate":
            peer.answer(request, ACCEPTED)

    ran = run_cli(["delegate", "x"], script)
    assert ran.code == 69
    assert "d1 was accepted" in ran.err


def test_a_dash_reads_standard_input(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "-"], answers(DONE), stdin="très long\n".encode())
    assert ran.params("delegate")["prompt"] == "très long\n"


def test_a_prompt_of_five_mebibytes_is_refused_with_what_to_do(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "-"], answers(DONE), stdin=b"x" * (5 * 1024 * 1024))
    assert ran.code == 2
    assert "file in the working directory" in ran.err
    assert ran.server.methods() == []


def test_a_prompt_that_grows_beyond_a_line_when_encoded_is_refused_too(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "-"], answers(DONE), stdin=b'"' * (3 * 1024 * 1024))
    assert ran.code == 2
    assert "file in the working directory" in ran.err


def test_a_prompt_that_is_no_text_is_refused(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "-"], answers(DONE), stdin=b"\xff\xfe")
    assert (ran.code, ran.server.methods()) == (2, [])
    assert "UTF-8" in ran.err


def test_a_variable_without_a_value_is_usage(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "x", "--env", "A"], answers(DONE))
    assert ran.code == 2
    assert "NAME=VALUE" in ran.err


def test_a_directory_that_is_gone_is_usage(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("fallbackd_client.cli.commands.work.os.getcwd", gone)
    ran = run_cli(["delegate", "x"], answers(DONE))
    assert ran.code == 2
    assert "--cwd" in ran.err


def test_warnings_of_the_daemon_are_shown(run_cli: RunCli) -> None:
    ran = run_cli(["delegate", "x"], answers({**DONE, "warnings": ["unknown role: judge"]}))
    assert "warning: unknown role: judge" in ran.err


@pytest.mark.parametrize(("code", "exit_code"), [(-32001, 2), (-32002, 75), (-32004, 75)])
def test_an_error_before_a_delegation_exists(run_cli: RunCli, code: int, exit_code: int) -> None:
    ran = run_cli(["delegate", "x"], {"delegate": Failing(code, "because")})
    assert ran.code == exit_code
    assert "because" in ran.err


def test_a_directory_whose_name_is_not_utf8_is_usage() -> None:
    from fallbackd_client.cli.commands.work import _cwd
    from fallbackd_client.cli.output import UsageError

    with pytest.raises(UsageError, match=r"caf\\xe9.*is not UTF-8.*--cwd"):
        _cwd("/work/caf\udce9")


DIFF = b"diff --git a/x b/x\n+the change\n"


@pytest.mark.parametrize(
    ("argv", "stdin", "sent"),
    [
        (["review this"], DIFF, "review this\n\ndiff --git a/x b/x\n+the change"),
        (["review this"], b"", "review this"),
        (["review this"], b" \n", "review this"),
        (["-"], DIFF, DIFF.decode()),
    ],
)
async def test_piped_input_follows_the_prompt_or_is_the_prompt(
    tmp_path: Path, argv: list[str], stdin: bytes, sent: str
) -> None:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            peer.answer(request, ACCEPTED if request["method"] == "delegate" else DONE)

    with serving(tmp_path / "control.sock", script, script, script) as server:
        ran = await run_client(server.path, "delegate", *argv, stdin=stdin)
        assert ran.code == 0, ran.err
        assert server.params("delegate")["prompt"] == sent


async def test_a_file_as_standard_input_follows_the_prompt_too(tmp_path: Path) -> None:
    (tmp_path / "x.diff").write_bytes(DIFF)

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            peer.answer(request, ACCEPTED if request["method"] == "delegate" else DONE)

    with serving(tmp_path / "control.sock", script, script, script) as server:
        with (tmp_path / "x.diff").open("rb") as file:
            await anyio.run_process(
                client_argv("delegate", "review this"),
                stdin=file,
                env=client_environ(server.path, None),
            )
        assert server.params("delegate")["prompt"].endswith("+the change")


async def test_a_pipe_that_only_stays_open_holds_nothing_up_and_that_is_said(
    tmp_path: Path,
) -> None:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            peer.answer(request, ACCEPTED if request["method"] == "delegate" else DONE)

    reading, writing = os.pipe()
    try:
        with serving(tmp_path / "control.sock", script, script, script) as server:
            ran = await anyio.run_process(
                client_argv("delegate", "do it"),
                stdin=reading,
                env=client_environ(server.path, None),
            )
            assert server.params("delegate")["prompt"] == "do it"
            assert b"no input came on standard input" in ran.stderr
    finally:
        os.close(reading)
        os.close(writing)
