"""A question of the MCP server, shown by Claude Code to the person who sits before it."""

import json
import shlex
from pathlib import Path

from tests.acceptance.test_questions import court
from tests.e2e.mcp_clients import configure, install
from tests.e2e.scenes import HANG_S, Scene, scene
from tests.e2e.tmux import Tmux, tmux_server

WINDOW = "claude"
DONE = "all of it is done"


def answer_first_questions(s: Scene) -> None:
    """What Claude Code asks a new user: theme, key, whether the directory is trusted."""
    path = s.home.path / ".claude.json"
    known = {
        **json.loads(path.read_text()),
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [s.home.env["ANTHROPIC_API_KEY"][-20:]]},
        "projects": {str(s.home.work): {"hasTrustDialogAccepted": True}},
    }
    path.write_text(json.dumps(known))


def begin(s: Scene, tmux: Tmux) -> None:
    env = {**s.home.env, "IS_SANDBOX": "1", "TERM": "xterm-256color"}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    command = f"env -i {words} {s.home.argv('claude', '')[0]}; sleep 1000"
    size = ("-x", "120", "-y", "50")
    tmux.run("new-session", "-d", "-s", WINDOW, *size, "-c", str(s.home.work), command)


async def test_a_person_answers_in_a_form_and_the_work_goes_on(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await configure(s, court(tmp_path / "bin"))
        written = {"prompt": "x", "role": "build", "session": "s", "wait": "finished"}
        await s.daemon.client.call("delegate", {**written, "cwd": str(s.home.work)})
        install("claude", s)
        answer_first_questions(s)
        judged = {"prompt": "judge it", "role": "judge", "session": "s"}
        s.provider.behave("claude", "tool", call="delegate", arguments=judged, text=DONE)
        with tmux_server() as tmux:

            async def shows(words: str) -> None:
                await tmux.until(WINDOW, words, hang_s=HANG_S)

            begin(s, tmux)
            await shows("❯")
            # Claude Code asks its model before its servers are there; then it has no tool yet.
            while "requests your input" not in tmux.shown(WINDOW):
                turns = tmux.shown(WINDOW).count(DONE)
                tmux.run("send-keys", "-t", WINDOW, "-l", "have it judged")
                await shows(r"❯\s+have it judged\s+─")
                tmux.run("send-keys", "-t", WINDOW, "Enter")
                await shows(rf"requests your input|(?s:(● {DONE}.*){{{turns + 1}}})")
            await shows("use:same: let same do it")
            for key, then in (
                ("Right", "◯ use:same"),
                ("Enter", "Choice: use:same"),
            ):
                tmux.run("send-keys", "-t", WINDOW, key)
                await shows(then)
            tmux.run("send-keys", "-t", WINDOW, "Enter")
            await s.provider.called("claude", where=lambda call: "a verdict" in str(call.body))
        found = await s.daemon.client.call("question.list", {"closed": True})
    (question,) = found["questions"]
    assert question["choice"] == "use:same"
    assert "MCP client" in question["note"]
