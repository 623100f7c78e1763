"""The real clients, answered by a backend that speaks another API than they do."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.e2e.gateway_scene import GatewayScene
from tests.e2e.scenes import HANG_S
from tests.support.daemon import running
from tests.support.gateway import free_port, listening
from tests.support.provider import provider

CONFIG = """
[gateway]
enabled = true
port = {port}
hold_s = 20

[defaults]
patience_s = 1

[backends.claude-api]
kind = "anthropic-http"
base_url = "{messages}"
model = "model-of-messages"
cost = "local"

[backends.chat-api]
kind = "openai-http"
base_url = "{chat}/v1"
api_mode = "chat_completions"
model = "model-of-chat"
cost = "local"

[chains]
team = [{entries}]
"*" = [{entries}]
"""
ENTRIES = """\
{ backend = "claude-api", translate = true }, { backend = "chat-api", translate = true }\
"""
MESSAGES, CHAT = "messages-api", "chat-api"


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[GatewayScene]:
    port = free_port()
    with anyio.fail_after(4 * HANG_S):
        async with provider() as served:
            chat = served.url(CHAT).replace("127.0.0.1", "localhost")
            text = CONFIG.format(
                port=port, messages=served.url(MESSAGES), chat=chat, entries=ENTRIES
            )
            async with running(tmp_path, text) as daemon:
                await listening(port)
                yield GatewayScene(served, daemon, port, tmp_path / "clients")


@pytest.mark.parametrize(
    ("client", "other"),
    [
        ("anthropic", MESSAGES),
        ("openai-chat", CHAT),
        ("openai-chat-whole", CHAT),
        ("opencode-chat", CHAT),
        ("opencode-messages", MESSAGES),
    ],
)
async def test_a_client_is_answered_by_the_backend_of_the_other_api(
    tmp_path: Path, client: str, other: str
) -> None:
    async with scene(tmp_path) as s:
        answers = CHAT if other == MESSAGES else MESSAGES
        s.provider.behave(other, "429", retry_after_s=3600)
        done = await s.run(client)
        assert done.answered, (done, s.daemon.log()[-3000:])
        if not client.startswith("opencode"):
            assert json.loads(done.out)["end"] in ("stop", "end_turn")
        assert len(s.provider.calls(other)) <= 1
        assert s.provider.calls(answers)


async def test_a_session_of_claude_code_goes_on_at_a_backend_of_chat_completions(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        first = await s.run("claude", "say pong")
        assert first.answered, first
        assert s.provider.calls(CHAT) == []
        s.provider.behave(MESSAGES, "429", retry_after_s=3600)
        s.provider.behave(CHAT, "tool", command="echo made-by-a-tool > made.txt")
        second = await s.run("claude", "now make a file", "--continue")
        assert second.answered, (second, s.daemon.log()[-3000:])
        assert (s.home.work / "made.txt").read_text() == "made-by-a-tool\n"
        *_, last = s.provider.calls(CHAT)
        roles = [one["role"] for one in last.body["messages"]]
        assert roles[-2:] == ["assistant", "tool"]
        said = json.dumps(last.body["messages"])
        assert "say pong" in said
        assert "now make a file" in said
        assert "signature" not in said
        # And back, when the second one fails: until then the session stays where it is.
        await s.daemon.client.call("health", {"action": "clear"})
        s.provider.behave(MESSAGES, "ok")
        s.provider.behave(CHAT, "429", retry_after_s=3600)
        third = await s.run("claude", "and once more", "--continue")
        assert third.answered, third
        *_, back = s.provider.calls(MESSAGES)
        assert "made-by-a-tool" in json.dumps(back.body)
