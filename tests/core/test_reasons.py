"""A reason is one row: everything that is kept by reason follows from it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fallbackd.core.policy import HOPPING, REASONS
from fallbackd.core.reasons import Reason

ROOT = Path(__file__).parents[2]
ROW = """    MAINTENANCE = "maintenance", Row(
        flags=_LATER,
        window=_window(900, 900, growth=1),
        marked="provider", about="backend", ended_by="settings", verdict="broken",
        is_outage=True, is_passing=True, is_limit=True, may_be_notice=True,
        fix=Fix(kind="configuration", text="its maker is at work on it"),
    )
"""
PROGRAM = '''
import json
from fallbackd.classify.classifier import classify
from fallbackd.classify.rules import Rule
from fallbackd.config.load import load
from fallbackd.core.failures import Reason, make_failure
from fallbackd.core.health import fail
from fallbackd.core.scopes import failed_scope
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import HOPPING, Backend, Policy
from fallbackd.core.protocol import Evidence
from fallbackd.core.upkeep import reason_of

loaded = load("""
[policy.maintenance]
cooldown_s = 60
[roles.judge]
fallback_on = ["maintenance"]
[[signatures]]
id = "works"
kind = "codex"
pattern = "down for works"
reason = "maintenance"
""", path="config.toml")
reason = Reason("maintenance")
failure = make_failure(reason, now=0.0)
backend = Backend(id=BackendId("b"), kind="openai-http", provider="api.example")
record = fail(None, ScopeId("s"), failure, Policy().reason(reason), started_at=None, now=0.0,
              luck=0.0)
read = classify(
    Evidence(text="down for works", exit_code=0, stream="stdout"),
    (Rule(id="works", reason=reason, pattern="down for works"),),
    now=0.0,
)
print(json.dumps({
    "flags": [failure.retryable, failure.retry_same, failure.hop, failure.marks_health],
    "scope": failed_scope(failure, backend, "m", None),
    "hops": reason in HOPPING,
    "window_s": record.outage.until_at,
    "by_a_person": list(reason_of("maintenance")),
    "problems": [one.message for one in (*loaded.errors, *loaded.warnings)],
    "cooldown_s": loaded.policy.reasons[reason].cooldown_s,
    "fallback_on": sorted(loaded.policy.roles["judge"].fallback_on),
    "read": None if read is None else read.reason,
}))
'''


def planted(folder: Path, row: str) -> Path:
    """A copy of the daemon with one more row of reasons."""
    shutil.copytree(
        ROOT / "daemon", folder / "daemon", ignore=shutil.ignore_patterns("__pycache__")
    )
    reasons = folder / "daemon" / "fallbackd" / "core" / "reasons.py"
    text = reasons.read_text()
    assert text.count("    # fmt: on\n") == 1
    reasons.write_text(text.replace("    # fmt: on\n", f"{row}    # fmt: on\n"))
    return reasons


def test_a_new_reason_is_one_row(tmp_path: Path) -> None:
    planted(tmp_path, ROW)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path / 'daemon'}:{ROOT / 'client'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "flags": [True, False, True, True],
        "scope": "provider:api.example",
        "hops": True,
        "window_s": 900.0,
        "by_a_person": ["maintenance", None],
        "problems": [],
        "cooldown_s": 60.0,
        "fallback_on": ["maintenance"],
        "read": "maintenance",
    }


@pytest.mark.parametrize("column", ["window", "fix"])
def test_a_row_that_lacks_a_column_does_not_pass_the_type_checker(
    tmp_path: Path, column: str
) -> None:
    half = re.sub(rf"\b{column}=(?:_window\([^)]*\)|Fix\([^)]*\)|\S+?),", "", ROW)
    assert half != ROW
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache",
         planted(tmp_path, half)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert f'Missing named argument "{column}" for "Row"' in ran.stdout


def test_a_reason_without_a_row_is_refused_as_soon_as_it_is_read(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, planted(tmp_path, '    MAINTENANCE = "maintenance"\n')],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "the reason maintenance has no row" in ran.stderr


def test_what_never_marks_has_no_window_and_only_what_hops_may_be_chosen() -> None:
    assert {one for one in Reason if one.row.window is None} == set(Reason) - set(REASONS)
    assert {one for one in Reason if one.row.flags.hop} == HOPPING


def test_no_stated_end_of_a_limit_is_believed_for_longer_than_eight_days() -> None:
    """A program's words must not take a login out of use for a year."""
    for reason in (one for one in Reason if one.row.is_limit):
        window = reason.row.window
        assert window is not None
        assert window.max_wait_s is not None, reason
        assert window.max_wait_s <= 8 * 86_400, reason
