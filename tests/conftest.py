"""
What the summary of a run shows beside the failures, also for tests that ran in worker processes.

Two sections: what tests record of themselves, and which tests an ordinary user cannot run. Those
are marked `root` (they need a second uid, mounts, a cgroup hierarchy, or to see what the daemon has
open), and `.ci/run` runs them.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from tests.support.saying import SAID

OF_A_TEST = "said"
"""Name of the property of a test that holds what it says (`record_property`)."""
NEED_ROOT = "need_root"
_left_out = pytest.StashKey[set[str]]()


# No test depends on how fast the machine is, and none fails by chance: the long tests explore.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("house", settings.get_profile("explore"), derandomize=True)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "root: needs uid 0; an ordinary user does not run it")
    config.stash[_left_out] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    need_root = [item for item in items if item.get_closest_marker("root")]
    config.stash[_left_out].update(item.nodeid for item in need_root)
    config.hook.pytest_deselected(items=need_root)
    items[:] = [item for item in items if item not in need_root]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[NEED_ROOT] = sorted(session.config.stash[_left_out])
        session.config.workeroutput[OF_A_TEST] = SAID


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """A worker of pytest-xdist has ended."""
    output = getattr(node, "workeroutput", {})
    SAID.extend(output.get(OF_A_TEST, ()))
    left_out = output.get(NEED_ROOT, ())
    node.config.stash[_left_out].update(left_out)  # type: ignore[attr-defined]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    said = [
        str(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in report.user_properties
        if name == OF_A_TEST
    ]
    section(terminalreporter, "said", [*said, *SAID])
    section(terminalreporter, "not run: these need root", sorted(config.stash[_left_out]))


def section(terminalreporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if lines:
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
