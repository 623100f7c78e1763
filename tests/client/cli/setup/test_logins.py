"""`accounts`, `doctor` and `setup` look at the same login and say the same of it."""

from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import PROGRAMS, Home, told
from tests.support.agents import program

from fallbackd_client.cli.commands.accounts import accounts_of
from fallbackd_client.cli.doctor.programs import Program, look_at_programs
from fallbackd_client.cli.output import Style
from fallbackd_client.cli.setup.starter import agents_view

WITH_ACCOUNTS = [one for one in PROGRAMS if one.home and one.files]


def answers(home: Home, one: Program, environ: dict[str, str]) -> dict[str, bool]:
    """Whether the agent is logged in, by the command that says so."""
    home.environ |= environ
    machine = home.machine()
    (account,) = accounts_of(machine, [one], "")
    found = told(look_at_programs(machine, [one], {}, is_service=False))
    line = agents_view(machine, [one], Style(enabled=False))
    assert ("  logged in" in line) is not ("  not logged in" in line)
    return {
        "accounts": account.is_logged_in(machine) is not False,
        "doctor": f"{one.name}: not logged in" not in [what for _, what, _ in found],
        "setup": "  not logged in" not in line,
    }


@pytest.mark.parametrize("one", WITH_ACCOUNTS, ids=lambda one: one.name)
@pytest.mark.parametrize("way", ["nothing", "file", "settings", "variable", "elsewhere", "empty"])
def test_three_commands_say_the_same_of_a_login(tmp_path: Path, one: Program, way: str) -> None:
    home = Home(tmp_path)
    program(home.bin, one.name, "exit 0")
    environ: dict[str, str] = {}
    if way == "file":
        home.write(home.path / one.files[0], "{}")
    if way == "settings" and one.settings:
        home.write(home.path / one.settings[0], "{}")
    if way == "variable":
        environ = {one.variables[0]: "x"}
    if way == "elsewhere":
        moved = tmp_path / "moved"
        environ = {one.home: str(moved)}
        home.write(Path(one.place(one.files[0], str(home.path), environ)), "{}")
    if way == "empty":
        environ = {one.variables[0]: ""}
    is_there = way not in ("nothing", "empty") and (way != "settings" or bool(one.settings))
    assert answers(home, one, environ) == dict.fromkeys(("accounts", "doctor", "setup"), is_there)
