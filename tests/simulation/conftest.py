"""Says how many seeds were played, also where the output of tests is captured."""

from collections.abc import Callable

import pytest

TOLD = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TOLD] = []


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Say something in the summary of the run."""
    return pytestconfig.stash[TOLD].append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    told = config.stash.get(TOLD, [])
    if told:
        terminalreporter.section("simulation")
        for line in told:
            terminalreporter.write_line(line)
