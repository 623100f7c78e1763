"""Completions say what the parser says. The shells themselves: `make e2e`."""

import pytest

from fallbackd_client.cli.commands.completions import SHELLS, script
from fallbackd_client.cli.completions import whole_tree


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
