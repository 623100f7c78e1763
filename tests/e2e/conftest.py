"""
Worker processes take whole files: the longest shall not be the last that is taken. Some work in a
directory that an ordinary user may enter.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LONGEST = (
    "test_packages",
    "test_gateway_clients",
    "test_fuzz",
    "test_failover",
    "test_mcp",
    "test_unposted",
    "test_waits",
    "test_sharing",
    "test_failpoints",
    "test_takeover",
    "test_opencode_sessions",
    "test_resumption",
    "test_clis_alone",
    "test_toolchains",
    "test_taken_up",
    "test_stopping",
    "test_real_clis",
    "test_remembering",
    "test_opencode_tui",
    "test_opencode_subagents",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(LONGEST)))


@pytest.fixture
def base() -> Iterator[Path]:
    """Not below `tmp_path`, which another user cannot enter."""
    made = Path(tempfile.mkdtemp(prefix="fbd-base-"))
    made.chmod(0o755)
    yield made
    subprocess.run(["chmod", "-R", "u+w", str(made)], check=False)  # Go closes its modules
    shutil.rmtree(made)
