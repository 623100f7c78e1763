"""What git runs and obeys is put back after an attempt; what it merely keeps there stays."""

import os
import subprocess
from pathlib import Path

import pytest

from fallbackd.transports.process.gitguard import look, put_back

ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "T",
    "GIT_AUTHOR_EMAIL": "t@example.invalid",
    "GIT_COMMITTER_NAME": "T",
    "GIT_COMMITTER_EMAIL": "t@example.invalid",
}


def git(cwd: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=cwd, env=ENVIRON, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "commit", "-q", "--allow-empty", "-m", "start")
    return root


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.fsmonitor", "touch planted"),
        ("core.hooksPath", ".evil"),
        ("core.sshCommand", "touch planted"),
        ("alias.st", "!touch planted"),
        ("filter.x.smudge", "touch planted"),
        ("diff.x.textconv", "touch planted"),
        ("credential.helper", "!touch planted"),
        ("credential.https://example.com.helper", "!touch planted"),
        ("gpg.program", "touch"),
        ("include.path", "../evil"),
        ("includeIf.gitdir:/.path", "../evil"),
        ("remote.origin.uploadpack", "touch planted"),
        ("url.https://evil.example/.insteadOf", "https://example.com/"),
        ("merge.x.driver", "touch planted"),
        ("pager.log", "touch planted"),
        ("submodule.x.update", "!touch planted"),
        ("extensions.worktreeConfig", "true"),
    ],
)
def test_a_setting_that_names_a_program_is_dropped(repository: Path, key: str, value: str) -> None:
    known = look(str(repository))
    before = (repository / ".git" / "config").read_text()
    git(repository, "config", key, value)
    assert put_back(known) == (str(repository / ".git" / "config"),)
    assert (repository / ".git" / "config").read_text() == before
    assert value in (repository / ".git" / "config.dropped").read_text().replace("\\", "")


@pytest.mark.parametrize(
    "text", ["[core] fsmonitor = x\n", "[CORE]\nFSMONITOR=x\n", "[alias]a=!x\n"]
)
def test_however_it_is_written(repository: Path, text: str) -> None:
    known = look(str(repository))
    with (repository / ".git" / "config").open("a") as file:
        file.write(text)
    assert put_back(known)
    assert "x" not in (repository / ".git" / "config").read_text()


def test_remotes_branches_and_names_stay(repository: Path) -> None:
    known = look(str(repository))
    git(repository, "remote", "add", "origin", "https://example.com/x.git")
    git(repository, "config", "branch.update-hooks.remote", "origin")
    git(repository, "config", "user.name", "Somebody")
    git(repository, "commit", "-q", "--allow-empty", "-m", "more")
    assert put_back(known) == ()
    assert "origin" in git(repository, "remote")


def test_hooks_are_as_they_were(repository: Path) -> None:
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "pre-push"):
        (hooks / name).write_text("theirs")
        (hooks / name).chmod(0o755)
    known = look(str(repository))
    (hooks / "pre-commit").write_text("planted")
    (hooks / "pre-push").unlink()
    (hooks / "post-checkout").write_text("planted")
    (hooks / "post-checkout").chmod(0o755)
    (hooks / "notes").write_text("harmless")
    names = [Path(one).name for one in put_back(known)]
    assert names == ["post-checkout", "pre-commit", "pre-push"]
    assert (hooks / "pre-commit").read_text() == (hooks / "pre-push").read_text() == "theirs"
    assert os.access(hooks / "pre-push", os.X_OK)
    assert not (hooks / "post-checkout").exists()
    assert (hooks / "post-checkout.dropped").read_text() == "planted"
    assert (hooks / "notes").exists()
    assert put_back(known) == ()


def test_no_link_is_followed(repository: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    (victim / "file").chmod(0o755)
    inside = repository / ".git"
    known = look(str(repository))
    for name in ("hooks", "config"):
        (inside / name).rename(inside / f"{name}.old")
        (inside / name).symlink_to(victim if name == "hooks" else victim / "file")
    assert {Path(one).name for one in put_back(known)} >= {"hooks", "config"}
    assert (victim / "file").read_text() == "kept"
    assert list(victim.iterdir()) == [victim / "file"]
    assert not (inside / "config").is_symlink()
    assert git(repository, "log", "--format=%s") == "start\n"


def test_another_common_directory_is_dropped(repository: Path, tmp_path: Path) -> None:
    known = look(str(repository))
    (repository / ".git" / "commondir").write_text(str(tmp_path / "evil"))
    assert [Path(one).name for one in put_back(known)] == ["commondir"]
    assert git(repository, "log", "--format=%s") == "start\n"


@pytest.mark.parametrize("shape", ["worktree", "submodule"])
def test_linked_working_trees_and_submodules_are_held_too(
    repository: Path, tmp_path: Path, shape: str
) -> None:
    if shape == "worktree":
        work = tmp_path / "tree"
        git(repository, "worktree", "add", "-q", str(work))
        own = repository / ".git"
    else:
        part = tmp_path / "part"
        git(tmp_path, "clone", "-q", str(repository), str(part))
        allow = ("-c", "protocol.file.allow=always")
        git(repository, *allow, "submodule", "add", "-q", str(part), "part")
        work, own = repository, repository / ".git" / "modules" / "part"
    known = look(str(work))
    git(own, "config", "core.fsmonitor", "touch planted")
    assert str(own / "config") in put_back(known)
    assert "fsmonitor" not in (own / "config").read_text()


def test_without_a_repository_there_is_nothing_to_put_back(tmp_path: Path) -> None:
    assert look(str(tmp_path)) == b""
