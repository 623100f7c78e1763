"""
What a program of one's own may do at each permission, through a real daemon.

On a kernel without Landlock the same tests hold what is promised there: programs run as before, the
daemon says so, and reading takes the lock.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import program
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd.transports.process.runner.landlock import WHOLE_ABI, kernel_abi

IS_CONFINED = kernel_abi() >= WHOLE_ABI
TRIES = """\
#!/bin/sh
prompt=$(cat)
try() { if "$@" 2>/dev/null; then echo "yes $name"; else echo "no $name"; fi; }
say() { echo x > "$1"; }
name=inside try say inside
name=outside try say ../outside
name=home try say "$HOME/outside"
name=own try say "$HOME/.tries/state"
name=temporary try say "$TMPDIR/x"
name=key try grep -q secret "$HOME/.keys/other"
name=settings try grep -q kind "$HOME/.config/fallbackd/config.toml"
name=records try grep -q . "$HOME/.local/state/fallbackd/fallbackd.db"
name=login try grep -q secret "$HOME/.codex/auth.json"
name=open try grep -q open "$HOME/open"
name=environment try grep -q HOME "/proc/$(cat "$HOME/pid")/environ"
test -e "$HOME/wait" && while [ ! -e "$HOME/goes" ]; do sleep 0.05; done
echo "read: $prompt"
"""
CONFIG = """
[backends.mine]
kind = "generic-cli"
command = ["PROGRAM"]
MORE
[backends.other]
kind = "openai-http"
base_url = "http://127.0.0.1:9/v1"
model = "m"
credentials = [{ label = "one", file = "~/.keys/other" }]
"""
ALWAYS = {"own", "temporary", "open"}
KEYS = {"key", "settings", "records", "login"}


def config(tmp_path: Path, more: str = "") -> str:
    home = tmp_path / "home"
    for directory in (home / ".tries", home / ".keys", home / ".codex"):
        directory.mkdir(parents=True, exist_ok=True)
    for path in (home / ".keys" / "other", home / ".codex" / "auth.json"):
        path.write_text("secret")
        path.chmod(0o600)
    (home / "open").write_text("open")
    path = program(tmp_path / "bin", "tries", TRIES)
    return CONFIG.replace("PROGRAM", str(path)).replace("MORE", more)


async def delegate(daemon: Daemon, **params: Any) -> dict[str, Any]:
    (daemon.home / "pid").write_text(str(daemon.pid))
    given = {"prompt": "hello", "backend": "mine", "wait": "finished", "failover": False}
    given["cwd"] = str(daemon.work_dir)
    found: dict[str, Any] = await daemon.client.call("delegate", {**given, **params})
    return found


def can(done: dict[str, Any]) -> set[str]:
    assert done["state"] == "succeeded", done
    assert "read: hello" in done["text"]
    return {line[4:] for line in done["text"].splitlines() if line.startswith("yes ")}


WITHOUT = {"inside", "outside", "home"} | ALWAYS | KEYS


@pytest.mark.parametrize(
    ("permissions", "more", "allowed"),
    [
        ("read", "", ALWAYS),
        ("workspace", "", ALWAYS | {"inside"}),
        ("full", "", WITHOUT),
        ("workspace", "confine = false", WITHOUT),
        ("workspace", 'writable = ["~/"]', WITHOUT - {"outside"}),
    ],
)
async def test_a_permission_is_what_a_program_can_do(
    tmp_path: Path, permissions: str, more: str, allowed: set[str]
) -> None:
    async with running(tmp_path, config(tmp_path, more)) as daemon:
        found = can(await delegate(daemon, permissions=permissions))
        expected = allowed if IS_CONFINED else WITHOUT
        if expected != WITHOUT:
            # A superuser may look into the environment of others whatever the rules say.
            assert "environment" not in found or os.geteuid() == 0
        else:
            found.add("temporary")  # there may be no TMPDIR
        assert found - {"environment"} == expected


async def test_what_the_confinement_refused_is_explained(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "writes", 'cat > /dev/null; echo x > "$HOME/state"')
    text = f'[backends.mine]\nkind = "generic-cli"\ncommand = ["{path}"]\nretries = 0\n'
    async with running(tmp_path, text) as daemon:
        done = await delegate(daemon)
        evidence = done["attempts"][0]["failure"]["evidence"]
        assert ("Permission denied (it is confined: `writable = " in evidence) is IS_CONFINED
        assert not (daemon.home / "state").exists() or not IS_CONFINED


@pytest.mark.parametrize("permissions", ["read", "workspace"])
async def test_without_a_directory_of_the_caller_it_has_one_of_its_own(
    tmp_path: Path, permissions: str
) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        found = can(await delegate(daemon, permissions=permissions, cwd=None))
        writes = permissions == "workspace" or not IS_CONFINED
        assert ("inside" in found) is writes
        assert ("records" in found) is not IS_CONFINED


async def test_a_prompt_in_a_file_can_be_read(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "reads", 'cat "$1"')
    text = f'[backends.mine]\nkind = "generic-cli"\nstdin = "none"\ncommand = ["{path}", '
    async with running(tmp_path, text + '"{prompt_file}"]\n') as daemon:
        for permissions in ("read", "workspace", "full"):
            done = await delegate(daemon, permissions=permissions)
            assert (done["state"], done["text"]) == ("succeeded", "hello"), daemon.log()


async def test_one_that_is_held_to_reading_runs_beside_one_that_writes(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        (daemon.home / "wait").touch()
        writer = await delegate(daemon, wait="accepted")
        reader = await delegate(daemon, permissions="read", wait="accepted")
        assert (reader["state"] == "running") is IS_CONFINED, reader
        (daemon.home / "goes").touch()
        for one in (writer, reader):
            await daemon.client.call(
                "delegation.wait", {"delegation": one["delegation"], "wait_s": HANG_S}
            )


async def test_the_daemon_says_whether_agents_are_confined(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        told = (await daemon.client.call("status", {}))["daemon"]["confinement"]
        assert (told == "on") is IS_CONFINED
        ran = await run_client(daemon.socket, "status", "--verbose")
        assert f"confinement {told}" in ran.out
        daemon.config_path.write_text(f"[defaults]\nconfine = false\n{config(tmp_path)}")
        await daemon.client.call("config.reload")
        ran = await run_client(daemon.socket, "status", "--verbose")
        assert "confinement off: agents are not held to their permissions" in ran.out
        assert can(await delegate(daemon)) >= {"inside", "outside"}
