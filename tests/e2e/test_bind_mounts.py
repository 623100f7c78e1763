"""A directory that is mounted at a second place, in a mount namespace that ends with the test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = """
import sys
from fallbackd.lib.directories import identities, identity
place = sys.argv[1]
inner = identities(f"{place}/point/sub")
assert inner[0] == identity(f"{place}/original/tree/sub")
above = ("original/tree", "original", "point", ".")
missing = [name for name in above if identity(f"{place}/{name}") not in inner]
assert not missing, missing
assert identity(f"{place}/other") not in inner
print("seen")
"""


@pytest.mark.parametrize("source", ["original/tree", "linked"])
def test_what_lies_above_the_original_lies_above_the_mount(tmp_path: Path, source: str) -> None:
    for name in ("original/tree/sub", "point", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked").symlink_to("original/tree")
    as_root = () if os.geteuid() == 0 else ("-r",)
    script = 'mount --bind "$1/$2" "$1/point" && exec "$3" -c "$4" "$1"'
    words = (str(tmp_path), source, sys.executable, INSIDE)
    done = subprocess.run(
        ["unshare", "-m", *as_root, "sh", "-c", script, "sh", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "seen\n", done.stderr
