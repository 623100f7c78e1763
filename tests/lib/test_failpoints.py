import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.daemon import ROOT
from tests.support.survival.points import DAEMON, POINTS, RUNNER

from fallbackd.lib.failpoints import OPTION, VARIABLE, parse
from fallbackd.transports.process.environment import INSTEAD_OF_FILE, child_environment

PROGRAM = """
from fallbackd.lib.failpoints import hit
for number in range(1, 6):
    print(number, flush=True)
    hit("here")
    hit("there")
"""


def run(env: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", PROGRAM],
        env={"PYTHONPATH": str(ROOT / "daemon"), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls_of(path: Path) -> list[str]:
    """Names that a file gives to `hit`; anything but a plain string is an error."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hit":
            (name,) = node.args
            assert isinstance(name, ast.Constant), f"{path}: give hit() a plain string"
            found.append(str(name.value))
    return found


def test_the_process_ends_at_the_asked_hit_of_the_asked_point() -> None:
    done = run({VARIABLE: "elsewhere=kill, there=kill@3"}, "-X", OPTION)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["1", "2", "3"]
    assert done.stderr == "failpoint there\n"


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({}, ()),
        ({VARIABLE: "here=kill"}, ()),
        ({}, ("-X", OPTION)),
        ({VARIABLE: ""}, ("-X", OPTION)),
    ],
)
def test_a_variable_alone_or_an_option_alone_changes_nothing(
    env: dict[str, str], options: tuple[str, ...]
) -> None:
    done = run(env, *options)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "2", "3", "4", "5"])


@pytest.mark.parametrize("text", ["here", "here=sleep", "=kill", "here=kill@x", "here=kill@-1"])
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        parse(text)


def test_agents_do_not_see_it() -> None:
    seen = child_environment({VARIABLE: "here=kill", "A": "1"}, added={}, unset=(), marks={})
    assert seen.keys() == {"A", INSTEAD_OF_FILE}
    assert VARIABLE not in os.environ


def test_every_point_of_the_source_is_listed_and_stands_at_one_place() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "daemon").rglob("*.py"):
        found.update(calls_of(path))
    assert [name for name, count in found.items() if count > 1] == []
    assert set(found) == set(POINTS), "list it in tests/support/survival/points.py"
    in_runner = {
        name
        for path in (ROOT / "daemon/fallbackd/transports/process/runner").glob("*.py")
        for name in calls_of(path)
    }
    assert in_runner == set(RUNNER)
    assert not set(RUNNER) & set(DAEMON)
