"""What a person's own programs run or obey later is closed to confined agents of every kind."""

import subprocess
from pathlib import Path

import pytest
from tests.support.agents import program
from tests.support.daemon import HANG_S, running

from fallbackd.transports.process.runner.landlock import WHOLE_ABI, kernel_abi

IS_CONFINED = kernel_abi() >= WHOLE_ABI
LAUNCHERS = (
    ".bashrc",
    ".profile",
    ".gitconfig",
    ".ssh/config",
    ".local/bin/git",
    ".config/autostart/x.desktop",
    ".config/systemd/user/x.service",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/CLAUDE.md",
    ".claude/commands/x.md",
    ".claude/agents/x.md",
    ".claude/skills/x/SKILL.md",
    ".claude/plugins/x.json",
    ".claude/shell-snapshots/snapshot-bash-1-x.sh",
    ".claude/session-env/x/sessionstart-hook-1.sh",
    ".claude/local/claude",
    ".claude.json",
    ".codex/config.toml",
    ".codex/hooks.json",
    ".codex/AGENTS.md",
    ".config/opencode/opencode.json",
    ".config/opencode/plugin/x.ts",
    ".config/opencode/node_modules/x/index.js",
    ".gemini/settings.json",
    ".gemini/.env",
    ".gemini/extensions/x/gemini-extension.json",
    ".gemini/policies/x.toml",
    ".gemini/commands/x.toml",
    ".npm/_npx/x/node_modules/.bin/x",
    ".npmrc",
    ".cache/pre-commit/x",
    ".cache/opencode/node_modules/x",
    ".cache/p10k-instant-prompt-me.zsh",
    ".cache/ms-playwright/chromium-1/chrome",
    ".cargo/bin/cargo",
    ".cargo/config.toml",
    "go/bin/x",
    ".gradle/init.d/x.gradle",
    ".m2/settings.xml",
    ".docker/config.json",
)
SCRIPT = """#!/bin/sh
cat > /dev/null
for each in {places}; do
    mkdir -p "$HOME/$(dirname "$each")"; rm -f "$HOME/$each"; echo planted > "$HOME/$each"
done 2> /dev/null
echo {{}} > "${{XDG_CACHE_HOME:?}}/own" && echo kept > "${{npm_config_cache:?}}/own" && echo done
"""


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("permissions", ["read", "workspace"])
@pytest.mark.parametrize("kind", ["claude", "gemini", "opencode", "numasec", "generic-cli"])
async def test_nothing_is_left_that_is_run_later(
    tmp_path: Path, kind: str, permissions: str, there: bool
) -> None:
    home = tmp_path / "home"
    for place in LAUNCHERS if there else ():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text("theirs")
    tries = program(tmp_path / "bin", "tries", SCRIPT.format(places=" ".join(LAUNCHERS)))
    config = f'[backends.x]\nkind = "{kind}"\ncommand = ["{tries}"]\n'
    config += "serve = false\n" if kind == "opencode" else ""
    async with running(tmp_path, config) as daemon:
        done = await daemon.client.call(
            "delegate",
            {"prompt": "x", "backend": "x", "permissions": permissions, "wait": "finished"},
            timeout_s=HANG_S,
        )
        assert done["text"] == "done", done
    planted = [one for one in LAUNCHERS if _text(home / one) == "planted\n"]
    assert (planted == []) is IS_CONFINED
    assert not IS_CONFINED or not there or all(_text(home / one) == "theirs" for one in LAUNCHERS)
    assert not (home / ".cache" / "own").exists()
    assert not (home / ".npm" / "own").exists()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


GIT = """#!/bin/sh
cat > /dev/null
git() {{ command git -c user.name=T -c user.email=t@example.invalid "$@"; }}
git init -q other && echo x > f && git add f && git commit -qm made && git remote add origin ../x
{more}
printf '#!/bin/sh\\ntouch planted\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit
git config core.fsmonitor 'touch planted'
echo done
"""


@pytest.mark.parametrize(("permissions", "stays"), [("workspace", not IS_CONFINED), ("full", True)])
async def test_hooks_and_programs_of_a_repository_are_as_they_were(
    tmp_path: Path, permissions: str, stays: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    hook = work / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    agent = program(tmp_path / "bin", "agent", GIT.format(more=""))
    config = f'[backends.x]\nkind = "generic-cli"\ncommand = ["{agent}"]\n'
    async with running(tmp_path, config) as daemon:
        done = await daemon.client.call(
            "delegate",
            {
                "prompt": "x",
                "backend": "x",
                "permissions": permissions,
                "cwd": str(work),
                "wait": "finished",
            },
            timeout_s=HANG_S,
        )
        assert done["text"].endswith("done"), done
    assert hook.exists() is stays
    text = (work / ".git" / "config").read_text()
    assert ("fsmonitor" in text) is stays
    assert ("remote" in text) is stays  # the whole file, since it named a program
    assert any("post-commit" in one for one in done["warnings"]) is not stays
