"""How much text a project holds."""

import os
import subprocess
from pathlib import Path

import pytest

from fallbackd.transports.project_size import project_tokens

PLENTY = 10**9


def fill(root: Path) -> None:
    for name, text in {
        "a.py": "x" * 400,
        "below/b.py": "y" * 400,
        "node_modules/c.js": "z" * 4000,
        ".hidden/d": "z" * 4000,
        "ignored.log": "z" * 4000,
        ".gitignore": "ignored.log\nnode_modules\n.hidden\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "image.png").write_bytes(b"\0" * 4000)
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")


def test_ignored_and_built_files_data_and_links_do_not_count(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "ignored.log").unlink()
    assert project_tokens(str(tmp_path), enough=PLENTY) == (800 + 33) // 4


def test_in_a_repository_git_says_what_is_ignored(tmp_path: Path) -> None:
    fill(tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert project_tokens(str(tmp_path), enough=PLENTY) == (800 + 33) // 4


def test_a_repository_names_no_program_that_is_started(tmp_path: Path) -> None:
    fill(tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = f"touch {tmp_path}/started"
    subprocess.run(["git", "-C", str(tmp_path), "config", "core.fsmonitor", command], check=True)
    assert project_tokens(str(tmp_path), enough=PLENTY)
    assert not (tmp_path / "started").exists()


def test_it_stops_as_soon_as_it_is_enough(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text("x" * 400)
    assert 200 <= project_tokens(str(tmp_path), enough=200) <= 300


def test_what_is_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        project_tokens(str(tmp_path / "nope"), enough=1)
