"""What the doctor says of the tools that the repository at hand needs."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home
from tests.support.agents import program

from fallbackd_client.cli.doctor.findings import Finding
from fallbackd_client.cli.doctor.programs import look_at_toolchains

STATUS = {
    "daemon": {"confinement": "on"},
    "toolchains": [
        {
            "name": "cargo",
            "signs": ["Cargo.toml"],
            "writes": ["HOME/.cargo/registry/", "/srv/cargo/git/"],
            "refused": "cargo install",
        },
        {"name": "maven", "signs": ["pom.xml"], "writes": ["HOME/.m2/repository/"]},
        {"name": "gpg", "writes": ["HOME/.gnupg/"]},
    ],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With a repository in which the doctor is asked."""
    home = Home(tmp_path)
    home.environ["PATH"] = f"{home.bin}:/usr/bin:/bin"
    work = tmp_path / "work" / "below"
    work.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(work.parent)], check=True)
    monkeypatch.chdir(work)
    return home


def look(home: Home, environ: dict[str, str] | None = None, **daemon: str) -> list[Finding]:
    status = json.loads(json.dumps(STATUS).replace("HOME", str(home.path)))
    status["daemon"].update(daemon)
    return look_at_toolchains(home.machine(), status, environ or {}, is_service=False)


def test_a_note_names_the_tools_of_the_repository_and_what_stays_refused(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "work" / "Cargo.toml").touch()
    (tmp_path / "work" / "below" / "pom.xml").touch()
    [found] = look(home)
    assert found.level == "note"
    assert "uses cargo (Cargo.toml), maven (pom.xml)" in found.what
    assert "~/.cargo/registry/, /srv/cargo/git/, ~/.m2/repository/" in found.what
    assert "refused below `full`: cargo install" in found.what
    assert "`writable`" in found.what


def test_signed_commits_need_gpg(home: Home, tmp_path: Path) -> None:
    home.write(home.path / ".gitconfig", "[commit]\ngpgsign = true\n")
    [found] = look(home)
    assert "uses gpg (commit.gpgsign)" in found.what


def test_an_ssh_agent_that_the_daemon_does_not_know_is_a_warning(
    home: Home, tmp_path: Path
) -> None:
    home.write(home.path / ".gitconfig", "[commit]\ngpgsign = true\n[gpg]\nformat = ssh\n")
    [found] = look(home, {"PATH": "/usr/bin"})
    assert (found.level, found.fix) == ("warning", "fallbackd-client service restart")
    assert "SSH_AUTH_SOCK" in found.what
    assert look(home, {"PATH": "/usr/bin", "SSH_AUTH_SOCK": "/run/agent"}) == []
    assert look(home) == [], "its environment is not known"


@pytest.mark.parametrize("confinement", ["off: by the configuration", "no: no Landlock"])
def test_nothing_is_said_where_agents_are_not_confined(
    home: Home, tmp_path: Path, confinement: str
) -> None:
    (tmp_path / "work" / "Cargo.toml").touch()
    assert look(home, confinement=confinement) == []


def test_nothing_is_said_without_a_sign_or_without_git(home: Home, tmp_path: Path) -> None:
    assert look(home) == []
    home.environ["PATH"] = str(home.bin)
    program(home.bin, "unrelated", "exit 0")
    (tmp_path / "work" / "below" / "pom.xml").touch()
    [found] = look(home)
    assert "maven" in found.what
