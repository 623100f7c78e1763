"""What tests say of themselves is in the summary, also of tests that ran in other processes."""

import pytest

SAID = "said"
"""Name of the property of a test that holds what it says (`record_property`)."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = [
        str(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in report.user_properties
        if name == SAID
    ]
    if said:
        terminalreporter.section("said")
        for line in said:
            terminalreporter.write_line(line)
