"""A person who sits before the real claude or codex, in a window of tmux."""

import json
import shlex
import subprocess
from typing import Any, Protocol

from tests.e2e.clis import Home
from tests.e2e.mcp_clients import PROGRAM
from tests.e2e.scenes import HANG_S, Scene
from tests.e2e.tmux import Tmux

COLUMNS = "150"
PROMPT = {"claude": "❯", "codex": "›", "gemini": "PONG-OK", "opencode": "PONG-OK"}
"""What is shown where it can be typed; of those that are only given a prompt, the answer."""
_TOKEN = "scripted-token"  # of a plan; with an API key claude knows no plan's windows


def client(s: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    """`fallbackd-client`, as the person calls it in the directory of the work."""
    command = [PROGRAM, "--socket", s.daemon.socket, *words]
    found = subprocess.run(
        command, env=dict(s.home.env), cwd=s.home.work, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found


class HasHome(Protocol):
    @property
    def home(self) -> Home: ...


class Person:
    """Args: agent: claude or codex."""

    def __init__(self, s: HasHome, tmux: Tmux, agent: str) -> None:
        self._s = s
        self._tmux = tmux
        self.agent = agent
        self.window = agent

    @property
    def env(self) -> dict[str, str]:
        env = {**self._s.home.env, "IS_SANDBOX": "1", "TERM": "xterm-256color"}
        env["GEMINI_CLI_TRUST_WORKSPACE"] = "true"
        if self.agent == "claude":
            del env["ANTHROPIC_API_KEY"]
            env["CLAUDE_CODE_OAUTH_TOKEN"] = _TOKEN
        return env

    async def start(self, *options: str) -> None:
        self.answer_first_questions()
        await self.run([*self._s.home.argv(self.agent, "")[:1], *options])

    def answer_first_questions(self) -> None:
        """What a new user is asked: theme, and whether the directory is trusted."""
        home, work = self._s.home, str(self._s.home.work)
        if self.agent == "claude":
            known = {
                "hasCompletedOnboarding": True,
                "theme": "dark",
                "projects": {work: {"hasTrustDialogAccepted": True}},
            }
            (home.path / ".claude.json").write_text(json.dumps(known))
        elif self.agent == "codex":
            config = home.path / ".codex" / "config.toml"
            trusted = f'\n[projects.{json.dumps(work)}]\ntrust_level = "trusted"\n'
            config.write_text(config.read_text() + trusted)

    async def run(self, argv: list[str]) -> None:
        self.begin(argv)
        await self.sees(PROMPT[self.agent])

    def begin(self, argv: list[str]) -> None:
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.env.items())
        command = f"env -i {words} {shlex.join(argv)}; sleep 1000"
        size = ("-x", COLUMNS, "-y", "50")
        place = ("-c", str(self._s.home.work))
        self._tmux.run("new-session", "-d", "-s", self.window, *size, *place, command)

    async def sees(self, words: str) -> str:
        return await self._tmux.until(self.window, words, hang_s=HANG_S)

    def press(self, key: str) -> None:
        self._tmux.run("send-keys", "-t", self.window, key)

    async def says(self, words: str, *, then: str) -> str:
        """Type it until it stands there, send it, and wait for what is shown then."""
        self._tmux.run("send-keys", "-t", self.window, "-l", words)
        await self.sees(words)
        self.press("Enter")
        return await self.sees(then)


async def health(s: Scene, backend: str) -> dict[str, Any]:
    found: dict[str, Any] = await s.daemon.client.call("status")
    entry: dict[str, Any] = found["health"][backend]
    return entry
