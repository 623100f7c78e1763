"""Programs that the configuration describes."""

from typing import Any

import msgspec
import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    Chunk,
    CommandLine,
    Evidence,
    GivenUp,
    Outcome,
    ProcessExit,
    Reply,
    Work,
)

KIND = KINDS["generic-cli"]


def start(*command: str, options: dict[str, Any] | None = None, **changes: Any) -> CommandLine:
    work = Work(prompt="say pong", prompt_path="/run/d1/prompt", cwd="/srv/p", scratch="/run/d1/s")
    call = KIND.start(
        msgspec.structs.replace(work, **changes), Options(command=command, **(options or {}))
    )
    assert isinstance(call, CommandLine)
    return call


def run(options: Options, stdout: bytes, code: int = 0, stderr: bytes = b"") -> Outcome:
    parser = KIND.parser(options)
    parser.feed(Chunk("stdout", stdout, 0.0))
    parser.feed(Chunk("stderr", stderr, 0.0))
    return parser.finish(ProcessExit(gone=True, code=code))


def test_placeholders_are_filled_without_a_shell() -> None:
    call = start(
        "tool", "--in={prompt_file}", "-C", "{cwd}", "-m", "{model}", "{session}", "$HOME; {other}",
        model="m x", session="s'1",
    )  # fmt: skip
    assert call.argv == (
        "tool", "--in=/run/d1/prompt", "-C", "/srv/p", "-m", "m x", "s'1", "$HOME; {other}",
    )  # fmt: skip
    assert call.stdin == b"say pong"


def test_stdin_can_stay_empty() -> None:
    assert start("tool", options={"stdin": "none"}).stdin is None


def test_a_prompt_becomes_an_argument_only_where_that_is_allowed() -> None:
    with pytest.raises(ValueError, match="prompt_in_argv"):
        start("tool", "{prompt}")
    call = start("tool", "{prompt}", options={"prompt_in_argv": True}, prompt="--help")
    assert call.argv == ("tool", "--", "--help")


def test_the_end_of_options_is_not_marked_twice() -> None:
    call = start("tool", "run", "{prompt}", options={"prompt_in_argv": True}, prompt="-x")
    assert call.argv == ("tool", "run", "--", "-x")
    call = start("tool", "--", "{prompt}", options={"prompt_in_argv": True}, prompt="-x")
    assert call.argv == ("tool", "--", "-x")


@pytest.mark.parametrize("option", ["-p", "--message"])
def test_a_prompt_can_be_the_value_of_an_option_and_begins_none(option: str) -> None:
    def argv(prompt: str) -> tuple[str, ...]:
        options = {"prompt_in_argv": True}
        return start("copilot", option, "{prompt}", "-s", options=options, prompt=prompt).argv

    assert argv("say pong") == ("copilot", option, "say pong", "-s")
    for prompt in ("--yolo", "-x", "--", "-"):
        assert argv(prompt) == ("copilot", option, f" {prompt}", "-s")


@pytest.mark.parametrize(
    ("prompt", "why"),
    [("a\0b", "NUL"), ("x" * (100 * 1024 + 1), "100 KiB"), ("é" * 60_000, "100 KiB")],
)
def test_a_prompt_that_cannot_be_an_argument_is_refused(prompt: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        start("tool", "{prompt}", options={"prompt_in_argv": True}, prompt=prompt)


@pytest.mark.parametrize("name", ["model", "session"])
def test_a_value_never_begins_an_option(name: str) -> None:
    with pytest.raises(ValueError, match="option"):
        start("tool", f"{{{name}}}", **{name: "--delete-everything"})


def test_a_path_that_begins_with_a_dash_stays_a_path() -> None:
    assert start("tool", "{cwd}", cwd="-odd").argv == ("tool", "./-odd")


def test_a_missing_command_is_named() -> None:
    with pytest.raises(ValueError, match="command"):
        start()


def test_text_on_stdout_is_the_answer_as_it_is() -> None:
    text = b"\n  two\n\nlines: HTTP 429 Too Many Requests\n"
    assert run(Options(), text) == Reply(
        text="  two\n\nlines: HTTP 429 Too Many Requests", may_be_notice=True
    )


def test_nothing_on_stdout_is_an_empty_result() -> None:
    outcome = run(Options(), b" \n", stderr=b"loading\n")
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, now=0.0)
    assert failure is not None
    assert failure.reason == "empty_result"


def test_configured_exit_statuses_are_success() -> None:
    options = Options(success_exit_codes=(3,))
    assert run(options, b"done", code=3) == Reply(text="done", may_be_notice=True)
    outcome = run(options, b"done", code=0)
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, now=0.0)
    assert failure is not None
    assert failure.reason == "unknown"


def test_an_error_line_of_stderr_names_the_failure() -> None:
    outcome = run(Options(), b"partial", code=1, stderr=b"harmless\nError: rate limit exceeded\n")
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, now=0.0)
    assert failure is not None
    assert failure.reason == "rate_limit"


def test_lines_of_json_carry_the_answer_and_the_failure() -> None:
    options = Options(output="jsonl")
    ok = b'{"type":"start"}\nnot json\n{"type":"message","text":"one"}\n{"result":"two"}\n'
    assert run(options, ok) == Reply(text="two")
    bad = b'{"text":"one"}\n{"type":"error","error":{"code":"insufficient_quota","message":"no"}}\n'
    parser = KIND.parser(options)
    assert any(isinstance(o, GivenUp) for o in parser.feed(Chunk("stdout", bad, 0.0)))
    outcome = parser.finish(ProcessExit(gone=True, code=0))
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, now=0.0)
    assert failure is not None
    assert failure.reason == "billing"


def test_lines_of_json_of_a_program_that_was_stopped_are_no_answer() -> None:
    parser = KIND.parser(Options(output="jsonl"))
    parser.feed(Chunk("stdout", b'{"text":"I have begun"}\n', 0.0))
    assert isinstance(parser.finish(ProcessExit(gone=True, code=0, stopped=True)), Evidence)
