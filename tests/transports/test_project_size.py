"""How much text a project holds."""

import os
import subprocess
from pathlib import Path

import pytest

from fallbackd.transports.machine import project_tokens

PLENTY = 10**9


def fill(root: Path) -> None:
    for name, text in {
        "a.py": "x" * 400,
        "below/b.py": "y" * 400,
        "node_modules/c.js": "z" * 4000,
        ".hidden/d": "z" * 4000,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "image.png").write_bytes(b"\0" * 4000)
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")


def test_hidden_and_built_files_data_and_links_do_not_count(tmp_path: Path) -> None:
    fill(tmp_path)
    assert project_tokens(str(tmp_path), enough=PLENTY) == 800 // 4


@pytest.mark.parametrize("planted", ["monitor", "fetch"])
def test_a_repository_names_no_program_that_is_started(tmp_path: Path, planted: str) -> None:
    """git would run one for a file that a partial clone lacks."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f").write_text("x" * 400)
    command = f"sh -c 'touch {tmp_path}/started; exit 1' x"

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    git("init", "-q")
    if planted == "fetch":
        lacking = f"100644,{'12' * 20},sub/.gitignore"
        git("update-index", "--add", "--cacheinfo", lacking)
        git("update-index", "--skip-worktree", "sub/.gitignore")
        git("config", "core.repositoryFormatVersion", "1")
        git("config", "remote.evil.promisor", "true")
        git("config", "remote.evil.url", str(tmp_path))
        git("config", "remote.evil.uploadpack", command)
        git("config", "extensions.partialClone", "evil")
    else:
        git("config", "core.fsmonitor", command)
    assert project_tokens(str(tmp_path), enough=PLENTY)
    assert not (tmp_path / "started").exists()


def test_it_stops_as_soon_as_it_is_enough(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text("x" * 400)
    assert 200 <= project_tokens(str(tmp_path), enough=200) <= 300


def test_what_is_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        project_tokens(str(tmp_path / "nope"), enough=1)
