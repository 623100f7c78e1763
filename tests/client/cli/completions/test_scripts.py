"""What is checked in is what the parser says today. The shells themselves: `make e2e`."""

from pathlib import Path

import pytest

from fallbackd_client.cli.commands.completions import SHELLS, script
from fallbackd_client.cli.completions import whole_tree

CONTRIB = Path(__file__).resolve().parents[4] / "contrib" / "completions"
FILES = {
    "bash": "fallbackd-client.bash",
    "fish": "fallbackd-client.fish",
    "zsh": "_fallbackd-client",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_files_are_those_that_the_parser_gives(shell: str) -> None:
    found = (CONTRIB / FILES[shell]).read_text()
    assert found == script(shell), "run `make completions`"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_every_long_flag_is_in_each(shell: str) -> None:
    text = script(shell)
    for node in whole_tree().walk():
        assert all(word in text for word in node.path)
        for option in node.shown:
            for flag in option.flags:
                if flag.startswith("--"):
                    assert (f"-l {flag[2:]}" if shell == "fish" else flag) in text


@pytest.mark.parametrize("shell", SHELLS)
def test_no_machine_is_named_in_them(shell: str) -> None:
    text = script(shell)
    assert "/home" not in text
    assert ".venv" not in text
