"""What git runs and obeys is put back after an attempt; what it merely keeps there stays."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fallbackd.transports.process.gitguard import GitGuard, Kept, _settings

ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "T",
    "GIT_AUTHOR_EMAIL": "t@example.invalid",
    "GIT_COMMITTER_NAME": "T",
    "GIT_COMMITTER_EMAIL": "t@example.invalid",
}


def look(cwd: str) -> bytes:
    return GitGuard().look("d1.1", cwd)


def put_back(known: bytes) -> tuple[str, ...]:
    """In another daemon."""
    return GitGuard().put_back("d1.1", known)


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
    "text",
    [
        "[core] fsmonitor = x\n",
        "[CORE]\nFSMONITOR=x\n",
        "[alias]a=!x\n",
        "[user][include]path = x\n",
        '[diff "a]"] textconv = x\n',
        "[user]\nname = a \\\n b\n[core]\nfsmonitor = x\n",
        "[user]\nname = a ; \\\nemail = b\n[core]fsmonitor = x\n",
        '[user]name = "[x]\\"#" \\\n c\n[core]fsmonitor = x\n',
        "[remote.a]vcs = x\n",
        '[remote "a"]url = ext::x\n',
        "[branch.main]remote = x://y\n",
        "[core]fsmonitor\n = x\n",
        "\ufeff[user]name = x\n",
        "[user]name = \0x\n",
    ],
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
    git(repository, "config", "user.name", "A Name")
    git(repository, "commit", "-q", "--allow-empty", "-m", "more")
    assert put_back(known) == ()
    assert "origin" in git(repository, "remote")


@pytest.mark.parametrize(
    "text",
    [
        '[user]name = a"b ; \\"c\\t" # d\n\temail= \\\n x @ y \r\n[color "ui"]a\n[Color]ui=\n',
        '[branch "a]\\"\\\\b"]merge = refs/heads/"a #" ; x\n\n; c \\\n[remote.Ab] url=h:p\n',
    ],
)
def test_settings_are_read_as_git_reads_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_bytes(b"\xef\xbb\xbf" + text.encode())
    told = git(tmp_path, "config", "--file", "config", "--list", "--null").split("\0")[:-1]
    parts = [one.partition("\n") for one in told]
    found = _settings(Kept("file", 0o600, (tmp_path / "config").read_bytes()))
    assert found == [(name, value if mark else None) for name, mark, value in parts]


def test_a_file_that_the_settings_include_is_held_as_they_are(repository: Path) -> None:
    git(repository, "config", "include.path", "../shared.cfg")
    known = look(str(repository))
    (repository / "shared.cfg").write_text("[core]\nfsmonitor = x\n")
    assert put_back(known) == (str(repository / "shared.cfg"),)
    assert not (repository / "shared.cfg").exists()


@pytest.mark.parametrize("shape", ["copy", "pointer", "closed", "blocked"])
def test_another_repository_in_its_place_is_not_obeyed(repository: Path, shape: str) -> None:
    known = look(str(repository))
    inside = repository / ".git"
    if shape in ("copy", "pointer"):
        inside.rename(repository / "old")
        shutil.copytree(repository / "old", inside if shape == "copy" else repository / "evil")
    if shape == "pointer":
        inside.write_text("gitdir: evil")
        git(repository, "config", "core.fsmonitor", "touch planted")
        assert put_back(known) == (f"{inside}/",)
        assert not inside.exists()
        return
    git(repository, "config", "core.fsmonitor", "touch planted")
    if shape == "closed":
        inside.chmod(0o500)
    if shape == "blocked":
        (inside / "config.dropped" / "x").mkdir(parents=True)
    assert str(inside / "config") in put_back(known)
    assert "fsmonitor" not in (inside / "config").read_text()


def test_the_file_that_points_to_a_repository_is_held(repository: Path, tmp_path: Path) -> None:
    work = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", str(work))
    before = (work / ".git").read_text()
    known = look(str(work))
    (work / ".git").write_text(f"gitdir: {tmp_path}/evil")
    assert put_back(known) == (str(work / ".git"),)
    assert (work / ".git").read_text() == before


@pytest.mark.parametrize("first", ["a", "b"])
def test_attempts_in_one_repository_share_what_the_first_has_found(
    repository: Path, tmp_path: Path, first: str
) -> None:
    for name in ("a", "b"):
        git(repository, "worktree", "add", "-q", str(tmp_path / name))
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    guard = GitGuard()
    known = {"a": guard.look("a", str(tmp_path / "a"))}
    restarted = GitGuard()
    restarted.recall("a", known["a"])
    for one in (guard, restarted):
        hook.write_text("planted")
        hook.chmod(0o755)
        known["b"] = one.look("b", str(tmp_path / "b"))
        for name in (first, "b" if first == "a" else "a"):
            one.put_back(name, known[name])
        assert not hook.exists()


def test_repositories_below_are_held(repository: Path) -> None:
    inner = repository / "parts" / "inner"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    for cwd in (repository, repository / "parts"):
        known = look(str(cwd))
        git(inner, "config", "core.fsmonitor", "touch planted")
        assert put_back(known) == (str(inner / ".git" / "config"),)


def test_hooks_that_are_links_stay_and_are_put_back(repository: Path) -> None:
    hooks = repository / ".git" / "hooks"
    shutil.rmtree(hooks, ignore_errors=True)
    hooks.mkdir()
    (hooks / "pre-commit").symlink_to("../../scripts/check")
    known = look(str(repository))
    assert put_back(known) == ()
    (hooks / "pre-commit").unlink()
    (hooks / "pre-commit").symlink_to("../../scripts/evil")
    assert put_back(known) == (str(hooks / "pre-commit"),)
    assert os.readlink(hooks / "pre-commit") == "../../scripts/check"


def test_a_directory_of_hooks_elsewhere_stays(repository: Path, tmp_path: Path) -> None:
    hooks = repository / ".git" / "hooks"
    shutil.rmtree(hooks, ignore_errors=True)
    hooks.symlink_to(tmp_path)
    known = look(str(repository))
    assert put_back(known) == ()
    hooks.unlink()
    hooks.mkdir()
    assert put_back(known) == (f"{hooks}",)
    assert os.readlink(hooks) == str(tmp_path)


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
