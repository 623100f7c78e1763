"""
What the shell of each real agent can do at each permission: in its directory, outside, with keys.

The agents are told by their own settings to run any command unasked, so that nothing but the
confinement is in the way.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.scenes import BACKENDS, ROUTES, Scene, scene
from tests.support.provider_frames import TEXT

from fallbackd.transports.process.runner.landlock import WHOLE_ABI, kernel_abi

IS_CONFINED = kernel_abi() >= WHOLE_ABI
KEYS = {
    "codex": ".codex/auth.json",
    "claude": ".claude/.credentials.json",
    "gemini": ".gemini/oauth_creds.json",
    "opencode": ".local/share/opencode/auth.json",
}
WORK = """\
h={home}
echo in > inside.txt
git add inside.txt
git commit -qm made
git log --format=committed:%s -1
echo x > "${{XDG_CACHE_HOME:-$h/.cache}}/cached.txt" && echo cached:own
mkdir -p $h/.cargo/registry && echo cached > $h/.cargo/registry/cached.txt
echo out > $h/outside.txt
echo out > {work}/../beside.txt
echo temporary > "${{TMPDIR:-/tmp}}/t"
while read line; do echo "read:$line"; done < $h/{key}
echo end"""


def allow_commands(home: Path) -> None:
    claude = home / ".claude"
    claude.mkdir(exist_ok=True)
    (claude / "settings.json").write_text(json.dumps({"permissions": {"allow": ["Bash"]}}))
    settings = home / ".gemini" / "settings.json"
    gemini = json.loads(settings.read_text())
    gemini["tools"] = {"allowed": ["run_shell_command"]}
    settings.write_text(json.dumps(gemini))


async def work(s: Scene, name: str, **params: Any) -> tuple[dict[str, Any], str]:
    """What became of it, and what its shell printed."""
    allow_commands(s.home.path)
    route = ROUTES[name]
    other = "claude" if route == "codex" else "codex"
    key = s.home.path / KEYS[other]
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_text('"sk-of-another"\n')
    (s.home.work / "Cargo.toml").touch()
    command = WORK.format(home=s.home.path, work=s.home.work, key=KEYS[other])
    s.provider.behave(route, "tool", "ok", command=command)
    done = await s.delegate(name, **params)
    return done, json.dumps(s.provider.calls(route, kind="main")[-1].body)


@pytest.mark.parametrize("name", BACKENDS)
async def test_the_shell_of_an_agent_writes_in_its_directory_alone(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        done, said = await work(s, name)
        assert done["state"] == "succeeded", s.daemon.log()
        assert done["text"] == TEXT
        assert (s.home.work / "inside.txt").read_text() == "in\n", said
        assert "committed:made" in said
        assert "cached:own" in said
        assert (s.home.path / ".cache" / "cached.txt").exists() is not IS_CONFINED
        assert (s.home.path / ".cargo" / "registry" / "cached.txt").exists()
        is_held = IS_CONFINED or name == "codex"
        assert (s.home.path / "outside.txt").exists() is not is_held
        assert (tmp_path / "beside.txt").exists() is not is_held
        assert "read:" in said or IS_CONFINED
        if name != "codex":  # its own sandbox lets everything be read
            assert ("sk-of-another" not in said) is IS_CONFINED


@pytest.mark.parametrize("name", BACKENDS)
async def test_an_agent_that_may_only_read_writes_nothing(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as s:
        await work(s, name, permissions="read")
        assert not (s.home.work / "inside.txt").exists()
        assert not (s.home.path / "outside.txt").exists()


@pytest.mark.parametrize("name", BACKENDS)
async def test_with_full_permission_an_agent_writes_anywhere(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as s:
        done, said = await work(s, name, permissions="full")
        assert done["state"] == "succeeded", s.daemon.log()
        assert (s.home.path / "outside.txt").exists(), said


@pytest.mark.parametrize("name", ["opencode", "claude"])
async def test_it_can_be_switched_off(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, backends={name: ["confine = false"]}) as s:
        done, said = await work(s, name)
        assert done["state"] == "succeeded", s.daemon.log()
        assert (s.home.path / "outside.txt").exists(), said


@pytest.mark.parametrize("name", ["opencode", "opencode-run", "gemini", "claude"])
async def test_a_confined_agent_keeps_its_conversation(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as s:
        allow_commands(s.home.path)
        s.provider.behave(ROUTES[name], "tool", "500", "ok", command="echo worked >> made.txt")
        done = await s.delegate(name, prompt="write the line, then say pong", mode="batch")
        assert done["state"] == "succeeded", s.daemon.log()
        assert (s.home.work / "made.txt").read_text() == "worked\n"
        last = json.dumps(s.provider.calls(ROUTES[name], kind="main")[-1].body)
        assert "write the line, then say pong" in last
        assert "echo worked" in last


async def test_a_server_of_opencode_serves_one_directory(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        other = tmp_path / "other"
        other.mkdir()
        command = f"p={other}; echo x > $p/crossed; echo x > here"
        s.provider.behave("opencode", "tool", "ok", "tool", "ok", command=command)
        for cwd in (other, s.home.work):
            done = await s.delegate("opencode", cwd=str(cwd))
            assert done["state"] == "succeeded", s.daemon.log()
            if cwd == other:
                (other / "crossed").unlink()
            assert (cwd / "here").exists()
        assert (other / "crossed").exists() is not IS_CONFINED


@pytest.mark.parametrize("name", ["opencode", "opencode-run", "claude"])
async def test_tools_that_an_agent_refuses_by_its_own_rules_are_in_the_result(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        settings = s.home.path / ".config" / "opencode" / "opencode.json"
        opencode = json.loads(settings.read_text())
        opencode["permission"] = {"bash": {"*": "allow", "curl *": "deny"}}
        settings.write_text(json.dumps(opencode))
        s.provider.behave(ROUTES[name], "tool", "ok", command="curl example.invalid > x")
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        assert not (s.home.work / "x").exists()
        refused = [one for one in done["warnings"] if "refused" in one]
        log = await s.daemon.client.call("delegation.log", {"delegation": done["delegation"]})
        assert refused, log["text"]
        assert "curl example.invalid > x" in refused[0]
        assert "permission `full`" in refused[0]
        told = await s.daemon.client.call("explain", {"delegation": done["delegation"]})
        assert told["warnings"] == done["warnings"]


@pytest.mark.parametrize("name", ["opencode", "opencode-run"])
async def test_an_agent_that_stops_at_a_question_asks_for_approval(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        settings = s.home.path / ".config" / "opencode" / "opencode.json"
        opencode = json.loads(settings.read_text())
        opencode["permission"] = {"bash": "ask"}
        settings.write_text(json.dumps(opencode))
        s.provider.behave("opencode", "tool", "ok", command="curl example.invalid > x")
        done = await s.delegate(name)
        assert done["attempts"][-1]["failure"]["reason"] == "approval_required", done


async def test_hooks_and_configuration_of_git_are_closed_to_commands_of_codex(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        command = "echo x > .git/hooks/made; git config a.b c; echo x > .git/made; echo end"
        s.provider.behave("codex", "tool", "ok", command=command)
        done = await s.delegate("codex")
        assert done["state"] == "succeeded", s.daemon.log()
        git = s.home.work / ".git"
        assert (git / "made").exists()
        assert not (git / "hooks" / "made").exists()
        assert "[a]" not in (git / "config").read_text()


@pytest.mark.parametrize("name", BACKENDS)
async def test_with_a_confined_shell_commands_run_unasked_and_none_leaves_the_machine(
    tmp_path: Path, name: str
) -> None:
    """Without a rule of the person's own: the agents' usual settings ask for most commands."""
    async with scene(tmp_path, shell="confined") as s:
        command = "curl file:///dev/null > made; echo x > $HOME/outside.txt; echo end"
        s.provider.behave(ROUTES[name], "tool", "ok", command=command)
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        calls = json.dumps(s.provider.calls(ROUTES[name], kind="main")[-1].body)
        assert (s.home.work / "made").exists() is (IS_CONFINED or name == "codex"), calls
        assert not (s.home.path / "outside.txt").exists()
        if name == "codex":  # its commands have no network
            return
        push = "git init -q --bare o; git push ./o HEAD"
        s.provider.behave(ROUTES[name], "tool", "ok", command=push)
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        calls = json.dumps(s.provider.calls(ROUTES[name], kind="main")[-1].body)
        assert "git push ./o" in " ".join(done["warnings"]), calls
