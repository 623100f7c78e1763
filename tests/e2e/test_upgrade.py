"""The release before is installed and works; this one replaces it; an older one is put back."""

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from tests.support import agents
from tests.support.daemon import HANG_S, ROOT, running
from tests.support.gateway import free_port
from tests.support.provider import provider
from tests.support.usermanager import UserManager, user_manager

from fallbackd_client import __version__

BEFORE = "f04b552c^"
"""The last commit of 0.1.0."""
FIRST_DATABASE = "6445c7b4^"
"""The last commit whose database has version 1."""
WITH_RESIDENTS = "b9f97ac5"
"""The first commit with programs that stay after a prompt."""
SLOW = "cat >/dev/null; while [ ! -e {gate} ]; do sleep 0.1; done; echo done"
CONFIG = """\
[gateway]
enabled = true
port = {port}
[backends.api]
kind = "openai-http"
base_url = "{url}"
model = "m"
cost = "local"
[chains]
team = ["api"]
"""


def require(*revisions: str) -> None:
    for one in revisions:
        found = subprocess.run(["git", "cat-file", "-e", one], cwd=ROOT, capture_output=True)
        assert found.returncode == 0, (
            f"the earlier version {one} is not in this checkout; an archive and a shallow clone"
            " have none: run these tests in a clone with its history (git fetch --unshallow)"
        )


class Installed:
    """A user who has one version in an environment of the distribution's Python."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "venv/bin"
        self.work = home / "work"
        self.work.mkdir(exist_ok=True)
        self.environ = {
            "HOME": str(home),
            "PATH": f"{self.bin}:{home / 'bin'}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }
        made = ["/usr/bin/python3", "-m", "venv", "--without-pip", str(home / "venv")]
        subprocess.run(made, check=True, timeout=HANG_S)
        self._pip("--require-hashes", "--requirement", str(ROOT / "requirements/run.txt"))

    def _pip(self, *words: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        subprocess.run([*pip, "--quiet", *words], check=True, timeout=10 * HANG_S)

    def install(self, revision: str | None) -> None:
        """Put a version in the place of the one that is there; None: that of the tree."""
        with tempfile.TemporaryDirectory(prefix="fbd-source-") as place:
            source = ROOT if revision is None else Path(place, "tree")
            if revision is not None:
                source.mkdir()
                packed = ["git", "archive", "--output", f"{place}/tree.tar", revision]
                subprocess.run(packed, cwd=ROOT, check=True, timeout=HANG_S)
                subprocess.run(["tar", "-xf", f"{place}/tree.tar", "-C", source], check=True)
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place]
            subprocess.run(build, cwd=source, check=True, timeout=5 * HANG_S, capture_output=True)
            (wheel,) = Path(place).glob("*.whl")
            self._pip("--force-reinstall", "--no-deps", str(wheel))
            pins = (source / "requirements/run.txt").read_text().splitlines()
            own = [pin.split()[0] for pin in pins if pin.startswith("tomli-w==")]
            if own:  # which the first of them wanted
                self._pip(*own)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / words[0]) if "/" not in words[0] else words[0], *words[1:]],
            env=self.environ,
            cwd=self.work,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def client(self, *words: str) -> str:
        done = self.run("fallbackd-client", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def call(self, method: str, **params: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.client("--json", "call", method, json.dumps(params))
        )
        return found

    def ask_gateway(self, port: int, token: str) -> str:
        """A program that was configured once, and asks with what it was given."""
        ends_at = time.monotonic() + HANG_S
        while True:
            try:
                got = httpx2.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json={"model": "team", "messages": [{"role": "user", "content": "hi"}]},
                    headers={"authorization": f"Bearer {token}"},
                    timeout=HANG_S,
                )
            except httpx2.ConnectError:
                assert time.monotonic() < ends_at, "the gateway does not listen"
                time.sleep(0.05)
                continue
            assert got.status_code == 200, got.text
            return str(got.json()["choices"][0]["message"]["content"])

    def hook_commands(self) -> list[str]:
        found = json.loads((self.home / ".claude/settings.json").read_text())["hooks"]
        return [one["command"] for group in found["UserPromptSubmit"] for one in group["hooks"]]

    def mcp_server(self) -> list[str]:
        entry = json.loads((self.home / ".claude.json").read_text())["mcpServers"]["fallbackd"]
        return [entry["command"], *entry["args"]]


@pytest.fixture
def user() -> Iterator[Installed]:
    home = Path(tempfile.mkdtemp(prefix="fbd-upgrade-"))
    found = Installed(home)
    try:
        yield found
    finally:
        (home / "gate").touch()
        found.run("fallbackd-client", "service", "stop")
        shutil.rmtree(home, ignore_errors=True)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


def upgraded(user: Installed, url: str) -> None:
    port = free_port()
    gate = user.home / "gate"
    config = user.home / ".config/fallbackd/config.toml"
    config.parent.mkdir(parents=True)
    slow = agents.backend_script(user.home / "bin", "slow", SLOW.format(gate=gate))
    quick = agents.backend_script(user.home / "bin", "quick", agents.ok("quick answer"))
    config.write_text(CONFIG.format(port=port, url=url) + slow + quick)

    user.install(BEFORE)
    assert user.run("fallbackd", "--version").stdout.split()[-1] == "0.1.0"
    user.client("hooks", "install", "claude", "--yes")
    user.client("mcp", "install", "claude", "--yes")
    user.client("service", "start")
    token = user.client("gateway", "token").strip()
    answer = user.ask_gateway(port, token)
    ended = user.call("delegate", prompt="x", backend="quick", session="mine", wait="finished")
    begun = user.call("delegate", prompt="x", backend="slow", wait="accepted", settle_s=1)
    user.call("health", action="mark", target="quick", reason="manual", ttl_s=3600)
    former = user.call("daemon.ping")["pid"]

    user.install(None)
    os.kill(former, signal.SIGKILL)  # at the worst moment
    user.client("service", "start")
    assert user.call("daemon.ping")["pid"] != former
    assert user.call("status")["daemon"]["version"] == __version__
    found = user.call("delegation.get", delegation=ended["delegation"])
    assert (found["state"], found["text"].strip()) == ("succeeded", "quick answer")
    assert user.call("health")["health"]["quick"]["state"] != "healthy", "marks stay"
    running = user.call("delegation.get", delegation=begun["delegation"])
    assert running["state"] == "running", running
    gate.touch()
    assert user.client("wait", begun["delegation"]) == "done\n"
    done = user.call("delegation.get", delegation=begun["delegation"])
    assert [one["state"] for one in done["attempts"]] == ["succeeded"]

    assert user.ask_gateway(port, token) == answer
    assert "claude: installed" in user.client("hooks", "status", "claude")
    for command in user.hook_commands():
        ran = user.run(*shlex.split(command), stdin='{"hook_event_name": "UserPromptSubmit"}')
        assert ran.returncode == 0, ran.stderr
    said = user.run(*user.mcp_server(), stdin=json.dumps(INITIALIZE) + "\n").stdout
    assert json.loads(said.splitlines()[0])["result"]["serverInfo"]["name"] == "fallbackd"
    user.client("hooks", "uninstall", "claude", "--yes")
    user.client("mcp", "install", "claude", "--undo", "--yes")
    assert not (user.home / ".claude.json").exists()
    user.client("service", "stop")

    state = user.home / ".local/state/fallbackd"
    before = {path.name: path.read_bytes() for path in state.glob("*.db")}
    assert before
    user.install(FIRST_DATABASE)
    refused = user.run("fallbackd")
    assert refused.returncode == 78, refused.stdout + refused.stderr
    assert "was written by a newer fallbackd" in refused.stdout + refused.stderr
    assert {path.name: path.read_bytes() for path in state.glob("*.db")} == before

    user.install(None)
    user.client("service", "start")
    assert user.client("show", ended["delegation"]).count("quick answer") == 1


async def test_records_of_the_first_database_are_served_and_converted(tmp_path: Path) -> None:
    state = tmp_path / "home/.local/state/fallbackd"
    state.mkdir(parents=True, mode=0o700)
    with closing(sqlite3.connect(state / "fallbackd.db")) as database:
        database.executescript((ROOT / "tests/stores/data/state_v1.sql").read_text())
    (state / "fallbackd.db").chmod(0o600)
    async with running(tmp_path) as daemon:
        listed = await daemon.client.call("delegation.list", {"limit": 10})
        assert [one["delegation"] for one in listed["delegations"]] == ["d2", "d1"]
        ended = await daemon.client.call("delegation.get", {"delegation": "d1"})
        assert (ended["state"], ended["served_by"]) == ("succeeded", "opencode")


async def test_an_upgrade_keeps_work_settings_and_clients_and_a_downgrade_is_refused(
    user: Installed,
) -> None:
    require(BEFORE, FIRST_DATABASE)
    async with provider() as api:
        api.behave("one", "ok")
        await anyio.to_thread.run_sync(upgraded, user, f"{api.url('one')}/v1")


class Served(Installed):
    """One whose commands run under a user manager."""

    def __init__(self, manager: UserManager) -> None:
        self._manager = manager
        manager.path = f"{manager.home / 'venv/bin'}:{manager.path}"
        super().__init__(manager.home)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        assert not stdin
        return self._manager.run(*words)

    def serve(self) -> int:
        """Install the service as it is in this version, with no journal; its process."""
        self.client("service", "install", "--yes")
        manager, log = self._manager, f"append:{self._manager.log_path}"
        place = ".config/systemd/user/fallbackd.service.d/test.conf"
        lines = f"StandardOutput={log}\nStandardError={log}\n"
        manager.write(place, f"[Service]\n{lines}Environment=PYTHONDONTWRITEBYTECODE=1\n")
        manager.systemctl("daemon-reload")
        manager.systemctl("restart", "fallbackd.service")
        assert self.call("daemon.ping")
        return manager.main_pid()


RESIDENT = """\
#!/usr/bin/python3
import json, os, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.332 (Claude Code)"))
def put(event):
    print(json.dumps(event, separators=(",", ":")), flush=True)
for line in sys.stdin:
    event = json.loads(line)
    if event["type"] == "control_request":
        said = {"subtype": "success", "request_id": event["request_id"]}
        put({"type": "control_response", "response": said})
        continue
    text = event["message"]["content"][0]["text"]
    put({"type": "system", "subtype": "init", "session_id": "c1"})
    while text.startswith("wait") and not os.path.exists(os.environ["HOME"] + "/gate"):
        time.sleep(0.1)
    done = {"type": "result", "subtype": "success", "is_error": False, "session_id": "c1"}
    put({**done, "result": str(os.getpid())})
"""


@pytest.mark.root
@pytest.mark.parametrize("before", [BEFORE, WITH_RESIDENTS], ids=["released", "with residents"])
def test_the_service_is_upgraded_below_work_that_goes_on(before: str) -> None:
    require(before)
    with user_manager() as manager:
        user = Served(manager)
        stays = "[defaults]\nresidents = 1\nconfine = false\n" if before == WITH_RESIDENTS else ""
        claude = manager.write("bin/claude", RESIDENT, mode=0o755)
        assert claude.exists()
        slow = agents.backend_script(
            user.home / "bin", "slow", SLOW.format(gate=user.home / "gate")
        )
        manager.write(".config/fallbackd/config.toml", stays + slow)
        user.install(before)
        former = user.serve()
        first = user.call(
            "delegate", prompt="first", backend="claude", session="s", wait="finished"
        )
        assert first["state"] == "succeeded", first
        begun = [
            user.call("delegate", prompt="wait", wait="accepted", **more)
            for more in ({"backend": "claude", "session": "s"}, {"backend": "slow"})
        ]
        for one in begun:
            manager.wait_for(
                "an attempt",
                lambda one=one: (
                    user.call("delegation.get", delegation=one["delegation"])["attempts"] != []
                ),
            )

        user.install(None)
        assert user.serve() != former
        assert user.call("status")["daemon"]["version"] == __version__
        for one in begun:
            found = user.call("delegation.get", delegation=one["delegation"])
            assert found["state"] == "running", found
        manager.write("gate", "")
        turn, other = (user.client("wait", one["delegation"]) for one in begun)
        assert other == "done\n"
        assert (turn == f"{first['text']}\n") == bool(stays), "the turn of the program that stayed"
        for one in begun:
            done = user.call("delegation.get", delegation=one["delegation"])
            assert [each["state"] for each in done["attempts"]] == ["succeeded"], done
        last = user.call("delegate", prompt="last", backend="claude", session="s", wait="finished")
        assert last["state"] == "succeeded", last
        assert user.client("show", first["delegation"]).count(first["text"]) >= 1
        user.client("service", "uninstall", "--yes")
