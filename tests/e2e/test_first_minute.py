"""The first minute of a new user: setup, then an answer, with a user manager and without one."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.acceptance.test_built_in_chains import ANSWERS, LIMITED
from tests.support import agents
from tests.support.daemon import HANG_S, ROOT
from tests.support.usermanager import program, user_manager

pytestmark = pytest.mark.root

ACCOUNT = 4343
"""The user id of an account that has no name and nothing in its home."""


AS_ACCOUNT = ("setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups")


class Account:
    """An ordinary user without a service manager, who has installed the wheel."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        self.environ = {
            "HOME": str(home),
            "PATH": f"{self.bin}:{home / 'venv/bin'}:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AS_ACCOUNT, *words],
            env={**self.environ, **(env or {})},
            cwd=self.home / "work",
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def agree(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the client on a terminal, and answer every question with yes."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, b"y\n" * 30)
            return self.run(str(self.home / "venv/bin/fallbackd-client"), *words, stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)

    def client(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.home / "venv/bin/fallbackd-client"), *words)

    def own(self) -> None:
        for place in (self.home, *self.home.rglob("*")):
            os.lchown(place, ACCOUNT, ACCOUNT)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree as it is."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(place), str(ROOT)], check=True, timeout=HANG_S)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture
def account(wheel: Path) -> Iterator[Account]:
    home = Path(tempfile.mkdtemp(prefix="fbd-account-"))  # where another user may look
    (home / "work").mkdir()
    # The Python of the distribution, which every user may run.
    made = ["/usr/bin/python3", "-m", "venv", "--without-pip", str(home / "venv")]
    subprocess.run(made, check=True, timeout=HANG_S)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "venv/bin/python"), "install"]
    locked = ["--quiet", "--constraint", str(home / "locked.txt"), str(wheel)]
    (home / "locked.txt").write_text(locked_versions())
    subprocess.run([*pip, *locked], check=True, timeout=5 * HANG_S)
    found = Account(home)
    for name in ("claude", "codex"):
        agents.program(found.bin, name, ANSWERS[name])
    found.own()
    try:
        yield found
    finally:
        found.client("service", "stop")
        shutil.rmtree(home, ignore_errors=True)


def locked_versions() -> str:
    """What the runtime requirements are locked to, without hashes, which a wheel of ours lacks."""
    lines = (ROOT / "requirements/run.txt").read_text().splitlines()
    pins = (line.partition(" \\")[0] for line in lines if "==" in line)
    return "\n".join(pins) + "\n"


def test_a_daemon_from_before_the_agents_were_on_the_path_is_started_again(
    account: Account,
) -> None:
    agents_bin = str(account.bin)
    without = account.environ["PATH"].removeprefix(f"{agents_bin}:")
    client = str(account.home / "venv/bin/fallbackd-client")
    begun = account.run(client, "service", "start", env={"PATH": without})
    assert begun.returncode == 0, begun.stdout + begun.stderr
    done = account.client("setup", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The running fallbackd's PATH does not include claude, codex." in done.stdout
    assert "claude answered: fallbackd is ready." in done.stdout
    again = account.client("setup", "--yes", "--no-delegate")
    assert "Set up already; nothing to change." in again.stdout


def settings_of(account: Account) -> dict[str, bytes]:
    """Every file of the home but the programs, the records and what the agents were given."""
    places = (account.home / ".claude", account.home / ".codex", account.home / ".config")
    files = (one for place in places for one in place.rglob("*") if one.is_file())
    return {str(one.relative_to(account.home)): one.read_bytes() for one in files}


def test_setup_offers_entries_in_open_agents_and_takes_all_of_it_back(account: Account) -> None:
    for name, text in (
        (".claude/settings.json", '{"model": "x"}'),
        (".codex/config.toml", "# me\n"),
    ):
        (account.home / name).parent.mkdir(exist_ok=True)
        (account.home / name).write_text(text)
    account.own()
    before = settings_of(account)
    done = account.agree("setup", "--no-delegate", "--no-service")
    assert done.returncode == 0, done.stdout + done.stderr
    for agent in ("claude", "codex"):
        assert f"undone by: fallbackd-client hooks uninstall {agent}" in done.stdout
        assert f"undone by: fallbackd-client mcp install --undo {agent}" in done.stdout
    assert account.client("hooks", "status").stdout.count(": installed") == 2
    assert b"fallbackd" in settings_of(account)[".codex/config.toml"]
    assert 'shell = "confined"' in account.client("config", "show").stdout
    again = account.agree("setup", "--no-delegate", "--no-service")
    assert "undone by" not in again.stdout

    undone = account.client("setup", "--undo", "--yes")
    assert undone.returncode == 0, undone.stdout + undone.stderr
    assert settings_of(account) == before
    assert "kept: ~/.local/state/fallbackd" in undone.stdout
    assert account.client("ping").returncode != 0
    assert "Nothing of setup is left." in account.client("setup", "--undo", "--yes").stdout


def interrupted_at(account: Account, question: int) -> tuple[int, str]:
    """Answer the questions of setup with yes, and interrupt it at one of them."""
    ours, theirs = pty.openpty()
    client = str(account.home / "venv/bin/fallbackd-client")
    process = subprocess.Popen(
        [*AS_ACCOUNT, client, "setup", "--no-service"],
        env=account.environ,
        cwd=account.home / "work",
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    os.close(theirs)
    shown, answered = "", 0
    try:
        while data := os.read(ours, 65_536):
            shown += data.decode()
            while answered < shown.count("/n] ") + shown.count("/N] "):
                answered += 1
                if answered == question:
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(ours, b"y\n")
    except OSError:  # its end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=HANG_S), shown


def test_setup_may_be_interrupted_at_each_question_and_taken_back(account: Account) -> None:
    before = settings_of(account)
    for question in range(1, 20):
        code, shown = interrupted_at(account, question)
        assert "Traceback" not in shown
        if code == 0:
            break
        assert (code, shown.endswith("interrupted\r\n")) == (130, True), shown
        undone = account.client("setup", "--undo", "--yes")
        assert undone.returncode == 0, undone.stdout + undone.stderr
        assert settings_of(account) == before, f"after question {question}"
    assert (code, question) == (0, 8), shown


def test_a_home_that_cannot_be_written_is_one_sentence(account: Account) -> None:
    os.chown(account.home, 0, 0)
    account.home.chmod(0o755)
    done = account.client("setup", "--yes", "--no-service")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    said = f"stopped: cannot write {account.home}/.config/fallbackd/config.toml: Permission denied"
    assert said in done.stderr
    asked = account.client("delegate", "--start", "hi")
    assert asked.returncode != 0
    assert "Traceback" not in asked.stderr
    assert "Permission denied" in asked.stderr, asked.stderr


def test_a_home_on_another_file_system_is_set_up_and_taken_back(account: Account) -> None:
    """Its `.config` is a link to a third one, as with dotfiles that are kept elsewhere."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="fbd-home-") as place:
        home = Path(place)
        assert home.stat().st_dev != account.home.stat().st_dev
        (account.home / "dotfiles").mkdir()
        (home / ".config").symlink_to(account.home / "dotfiles")
        account.own()
        os.chown(home, ACCOUNT, ACCOUNT)
        account.environ["HOME"] = place
        done = account.client("setup", "--yes", "--no-service")
        try:
            assert done.returncode == 0, done.stdout + done.stderr
            assert "claude answered: fallbackd is ready." in done.stdout
            assert account.agree("setup", "--no-delegate", "--no-service").returncode == 0
            undone = account.client("setup", "--undo", "--yes")
            assert undone.returncode == 0, undone.stdout + undone.stderr
            left = [one for one in (account.home / "dotfiles").rglob("*") if one.is_file()]
            assert left == []
        finally:
            account.client("service", "stop")


def test_a_first_prompt_starts_the_daemon_where_it_is_asked_to(account: Account) -> None:
    refused = account.client("delegate", "hi")
    assert refused.returncode != 0
    assert "delegate --start" in refused.stderr
    asked = account.client("delegate", "--start", "hi")
    assert (asked.returncode, asked.stdout) == (0, "by claude\n"), asked.stderr
    assert account.client("delegate", "--start", "hi").stdout == "by claude\n"


def test_a_fresh_account_without_a_user_manager_gets_an_answer(account: Account) -> None:
    shown = account.client("setup", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "would start fallbackd in the background" in shown.stdout
    assert not (account.home / ".config").exists(), "a dry run changes nothing"

    done = account.client("setup", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "claude answered: fallbackd is ready." in done.stdout
    config = account.home / ".config/fallbackd/config.toml"
    assert config.read_text().startswith("#:schema ./config.schema.json\n")
    assert account.client("config", "check").stdout.endswith("config.toml: good\n")

    asked = account.client("delegate", "hi")
    assert (asked.returncode, asked.stdout) == (0, "by claude\n"), asked.stderr
    config.write_text("# mine\n")
    again = account.client("setup", "--yes", "--no-delegate")
    assert "Set up already; nothing to change." in again.stdout
    assert config.read_text() == "# mine\n", "an existing configuration is left alone"

    agents.program(account.bin, "codex", LIMITED)
    moved = account.client("delegate", "--backend", "codex", "hi")
    assert (moved.returncode, moved.stdout) == (0, "by claude\n"), moved.stderr
    (sentence,) = moved.stderr.splitlines()
    assert sentence.startswith("codex hit its usage limit (resets ")
    assert sentence.endswith("; continuing with claude.")


def test_a_service_is_set_up_with_the_path_of_the_shell_and_removed_again() -> None:
    with user_manager() as manager:
        for name in ("claude", "codex"):
            agents.program(manager.home / "bin", name, ANSWERS[name])
        done = manager.client("setup", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "claude answered: fallbackd is ready." in done.stdout
        assert manager.show("fallbackd.socket", "UnitFileState") == "enabled"
        assert manager.main_pid() > 0
        env = (manager.home / ".config/fallbackd/env").read_text()
        assert env == f"PATH={manager.path}\n"
        assert manager.client("setup", "--yes").stdout.count("done  ") <= 1, "lingering may fail"

        gone = manager.client("service", "uninstall", "--yes")
        assert gone.returncode == 0, gone.stdout + gone.stderr
        assert not (manager.home / ".config/systemd/user/fallbackd.service").exists()
        assert manager.show("fallbackd.service", "LoadState") == "not-found"
        assert manager.client("ping").returncode == 69


def test_a_refusal_names_the_fix_where_only_the_path_of_the_service_lacks_the_program() -> None:
    with user_manager() as manager:
        manager.install()
        manager.write(".config/fallbackd/env", "PATH=/usr/bin:/bin\n", mode=0o600)
        manager.systemctl("enable", "--now", "fallbackd.socket")
        agents.program(manager.home / "bin", "codex", ANSWERS["codex"])
        refused = manager.client("delegate", "hi")
        assert refused.returncode == 78, refused.stderr
        assert "is on the daemon's PATH (/usr/bin:/bin); install one" in refused.stderr
        _, said = refused.stderr.splitlines()
        assert said == (
            f"installed, but not on the daemon's PATH: codex ({manager.home}/bin/codex);"
            " fix this with: fallbackd-client doctor --fix"
        )

        beside = {"PATH": f"{manager.path}:{Path(program('fallbackd')).parent}"}
        fixed = manager.run("fallbackd-client", "doctor", "--fix", "--yes", env=beside)
        assert "PATH=" in fixed.stderr, fixed.stderr
        asked = manager.client("delegate", "hi")
        assert (asked.returncode, asked.stdout) == (0, "by codex\n"), asked.stderr


def test_a_daemon_from_a_terminal_makes_room_for_the_service() -> None:
    with user_manager() as manager:
        agents.program(manager.home / "bin", "claude", ANSWERS["claude"])
        started = manager.client("service", "start")
        assert started.returncode == 0, started.stdout + started.stderr
        former = manager.client("call", "daemon.ping").stdout
        installed = manager.client("service", "install", "--yes")
        assert installed.returncode == 0, installed.stdout + installed.stderr
        assert "stop the fallbackd" in installed.stdout
        assert manager.client("call", "daemon.ping").stdout != former
        assert manager.main_pid() > 0
