"""What `setup` says of the agents on a machine that is made up."""

from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import PROGRAMS, Home
from tests.support.agents import program

from fallbackd_client.cli.output import Style
from fallbackd_client.cli.setup.starter import agents_view, first_question


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path)
    program(found.bin, "claude", "echo")
    return found


def test_a_first_prompt_is_offered_where_an_agent_is_logged_in(home: Home) -> None:
    home.write(home.path / ".claude/.credentials.json", "{}")
    assert first_question(home.machine(), PROGRAMS).startswith("Run a first prompt?")


def test_an_agent_that_serves_models_without_a_login_is_enough(home: Home) -> None:
    program(home.bin, "opencode", "echo")
    assert first_question(home.machine(), PROGRAMS).startswith("Run a first prompt?")


def test_a_version_that_is_not_supported_is_named_and_no_other_one_advised(home: Home) -> None:
    program(home.bin, "opencode", "echo opencode v3.0.0")
    shown = agents_view(home.machine(), PROGRAMS, Style(enabled=False))
    assert "opencode 3.0.0 is not supported yet: fallbackd works with versions 1 and 2" in shown
    assert "npm install" not in shown


def test_the_question_says_how_to_log_in_where_no_agent_seems_to_be(home: Home) -> None:
    assert first_question(home.machine(), PROGRAMS) == (
        "No agent seems to be logged in (log in with: claude auth login).\n"
        "Run a first prompt all the same?"
    )
