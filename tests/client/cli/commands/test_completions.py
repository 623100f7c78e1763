import json

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.commands.completions import SHELLS, script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed_without_a_daemon(shell: str, run_cli: RunCli) -> None:
    ran = run_cli(["completions", shell], {})
    assert (ran.code, ran.out) == (0, script(shell))
    assert ran.server.requests == []
    assert json.loads(run_cli(["completions", shell, "--json"], {}).out)["shell"] == shell


@pytest.mark.parametrize("argv", [["completions"], ["completions", "csh"]])
def test_a_shell_has_to_be_named(argv: list[str], run_cli: RunCli) -> None:
    assert run_cli(argv, {}).code == 2


def test_words_are_listed_with_what_they_are(run_cli: RunCli) -> None:
    answer = {"health": {"codex": {"state": "healthy"}}}
    ran = run_cli(["completions", "--list", "backends"], {"health": answer})
    assert (ran.code, ran.out) == (0, "codex\thealthy\n")


def test_nobody_who_answers_is_silence(run_cli: RunCli) -> None:
    ran = run_cli(["completions", "--list", "backends"], {})
    assert (ran.code, ran.out, ran.err) == (0, "", "")
