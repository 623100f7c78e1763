"""Sessions of a running `opencode serve`, kept alive by a daemon that watches it."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from msgspec import Struct
from tests.e2e.clis import Home, build_home
from tests.e2e.holding_proxy import HoldingProxy, holding_proxy
from tests.e2e.opencode_server import Server, opencode, said
from tests.support.daemon import ROOT, Daemon, running
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT
from tests.support.saying import say

HANG_S = 400.0
LOOK_S = 0.02
PLUGIN = ROOT / "contrib" / "opencode-plugin" / "src" / "index.ts"

CONFIG = """
[policy.rate_limit]
window_s = 600
cooldown_s = 0
[opencode]
servers = [{servers}]
[roles.build]
chain = ["b/m", "c/m"]
"""
ANSWERED = [("b/m", TEXT)]


class Scene(Struct, kw_only=True):
    provider: Provider
    server: Server
    proxy: HoldingProxy
    daemon: Daemon
    home: Home
    toasts: list[str]

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.daemon.client.call(method, params)
        return found

    async def health(self, model: str) -> dict[str, Any]:
        found = await self.call("health", action="get", target=model)
        entry: dict[str, Any] = found["health"][model]
        return entry

    async def forget(self) -> None:
        self.provider.log.clear()
        self.toasts.clear()
        await self.call("health", action="clear")

    async def until(self, is_so: Callable[[], Any]) -> None:
        with anyio.fail_after(HANG_S):
            while not is_so():
                await anyio.sleep(LOOK_S)

    async def followed(self, times: int = 1) -> None:
        """The daemon hears what happens at the server."""
        await self.until(lambda: self.daemon.log().count("server.followed") >= times)

    async def asks(self, model: str = "a/m", text: str = "say pong") -> str:
        session = await self.server.session()
        await self.server.prompt(session, model, text)
        return session

    async def answer(self, session: str) -> list[dict[str, Any]]:
        return await self.server.until(session, has_answer)


def has_answer(messages: list[dict[str, Any]]) -> bool:
    replies = [one for one in messages if one["info"]["role"] == "assistant"]
    return bool(replies) and replies[-1]["info"].get("finish") == "stop"


@asynccontextmanager
async def scene(
    tmp_path: Path, *, plugin: Path | None = None, hostname: str = "127.0.0.1"
) -> AsyncIterator[Scene]:
    """Without a plugin the daemon is told of the server by its configuration."""
    with anyio.fail_after(2 * HANG_S):
        async with provider() as served:
            home = build_home(tmp_path, served, names=("opencode",))
            runtime = tmp_path / "run"
            async with (
                opencode(
                    home, served, plugin=plugin, hostname=hostname, FALLBACKD_SOCKET=str(runtime)
                ) as server,
                holding_proxy(server.port) as proxy,
            ):
                config = CONFIG.format(servers="" if plugin else json.dumps(proxy.url))
                async with running(tmp_path, config, env=home.env) as daemon:
                    runtime.symlink_to(daemon.socket)
                    one = Scene(
                        provider=served,
                        server=server,
                        proxy=proxy,
                        daemon=daemon,
                        home=home,
                        toasts=[],
                    )
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(hear_toasts, one)
                        await server.session()  # plugins are loaded with the first use of a place
                        await one.followed()
                        yield one
                        tasks.cancel_scope.cancel()


async def hear_toasts(s: Scene) -> None:
    """What the server would show in its interface."""
    while True:
        try:
            url = f"{s.server.url}/global/event"
            async with s.server.client.stream("GET", url, timeout=HANG_S) as stream:
                async for line in stream.aiter_lines():
                    if "tui.toast.show" in line:
                        event = json.loads(line.removeprefix("data:"))
                        s.toasts.append(event["payload"]["properties"]["message"])
        except httpx2.HTTPError:
            await anyio.sleep(LOOK_S)  # it is being restarted


async def test_sessions_live_on_where_models_and_processes_fail(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        for part in PARTS:
            begun_s = time.monotonic()
            await part(s)
            say(f"{time.monotonic() - begun_s:5.1f} s  {part.__name__}")


async def a_throttled_model_is_left_before_its_third_request(s: Scene) -> None:
    s.provider.behave("a", "429", retry_after_s=None)
    session = await s.asks()
    messages = await s.answer(session)
    assert said(messages, "user") == [("b/m", "say pong")]
    assert said(messages, "assistant") == ANSWERED
    (b,) = s.provider.calls("b", kind="main")
    before = [one for one in s.provider.calls("a", kind="main") if one.at < b.at]
    assert 1 <= len(before) < 3
    say(f"failing answer of A to request at B: {b.at - before[0].at:.2f} s")
    entry = await s.health("a/m")
    assert (entry["state"], entry["reason"]) == ("rate_limited", "rate_limit")
    await s.until(lambda: s.toasts)
    assert s.toasts == ["switched from m [a] to m [b] (rate_limit)"]
    seen = await s.call("session.get", session=session)
    assert (seen["original"], seen["current"]) == ("a/m", "b/m")
    with anyio.fail_after(HANG_S):
        while True:
            usage = (await s.call("usage", session=session))["usage"]
            if any(one["period"] == "total" for one in usage):
                break
            await anyio.sleep(LOOK_S)
    (total,) = (one for one in usage if one["period"] == "total")
    assert (total["backend"], total["output_tokens"] > 0) == ("b/m", True)
    assert [one["backend"] for one in usage if one["period"] == "model"] == ["a/m", "b/m"]


async def a_message_with_a_format_moves_with_it(s: Scene) -> None:
    await s.forget()
    s.provider.behave("a", "429", retry_after_s=None)
    session = await s.server.session()
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    await s.server.prompt(session, "a/m", format={"type": "json_schema", "schema": schema})
    (b,) = await s.provider.called("b", 1, where=lambda one: one.kind == "main")
    assert "StructuredOutput" in json.dumps(b.body["tools"])
    await s.server.call("POST", f"/session/{session}/abort")


async def a_fallback_that_is_throttled_too_is_left_for_the_next_one(s: Scene) -> None:
    await s.forget()
    s.provider.behave("b", "429", retry_after_s=None)
    session = await s.asks()
    messages = await s.answer(session)
    assert said(messages, "user") == [("c/m", "say pong")]
    assert said(messages, "assistant") == [("c/m", TEXT)]
    found = await s.call("session.get", session=session)
    assert [one["to"] for one in found["hops"]] == ["b/m", "c/m"]
    assert (await s.health("b/m"))["state"] == "rate_limited"


async def where_all_are_out_the_session_stays_as_it_was(s: Scene) -> None:
    await s.forget()
    for model in ("b/m", "c/m"):
        await s.call("health", action="mark", target=model, reason="rate_limit", ttl_s=7200)
    session = await s.asks()
    told = [" is out (rate_limit)", "the earliest comes back in"]
    await s.until(lambda: notices(s, *told))
    await s.provider.called("a", 2, where=lambda one: one.kind == "main")  # it goes on retrying
    assert len(notices(s, *told)) == 1
    messages = await s.server.messages(session)
    assert said(messages, "user") == [("a/m", "say pong")]
    await s.server.call("POST", f"/session/{session}/abort")


def notices(s: Scene, *words: str) -> list[str]:
    return [one for one in s.toasts if all(word in one for word in words)]


async def what_the_failed_turn_has_written_is_kept(s: Scene) -> None:
    await s.forget()
    s.provider.behave("a", "tool", "429", command="echo kept > kept.txt", retry_after_s=None)
    s.provider.behave("b", "ok")
    session = await s.asks(text="write kept.txt")
    messages = await s.answer(session)
    assert (s.home.work / "kept.txt").read_text() == "kept\n"
    first, second = said(messages, "user")
    assert first == ("a/m", "write kept.txt")
    assert second[0] == "b/m"
    assert second[1].startswith("Continue the task above")


async def a_daemon_that_dies_before_the_revert_finishes_it_when_it_is_back(s: Scene) -> None:
    await dies_at(s, "/revert")


async def a_daemon_that_dies_before_the_prompt_sends_it_when_it_is_back(s: Scene) -> None:
    await dies_at(s, "/prompt_async")


async def dies_at(s: Scene, step: str) -> None:
    await s.forget()
    s.provider.behave("a", "429", retry_after_s=None)
    s.proxy.hold(step)
    session = await s.asks()
    await s.proxy.held()
    await s.daemon.kill()
    s.proxy.hold("/nothing")
    await s.daemon.start()
    messages = await s.answer(session)
    assert said(messages, "user") == [("b/m", "say pong")]
    assert said(messages, "assistant") == ANSWERED
    assert "rescue.resumed" in s.daemon.log()
    found = await s.call("session.get", session=session)
    assert (found["current"], found["depth"]) == ("b/m", 1)


async def a_server_that_dies_before_the_prompt_gets_it_when_it_is_back(s: Scene) -> None:
    await s.forget()
    s.proxy.hold("/prompt_async")
    session = await s.asks()
    await s.proxy.held()
    await s.server.kill()
    s.proxy.release()
    await s.until(lambda: "server.lost" in s.daemon.log())
    found = await s.call("session.get", session=session)
    assert found["rescue"] == "prompt: a/m → b/m (rate_limit)"
    status = await s.call("opencode.status", session=session)
    assert status["rescue"]["step"] == "prompt"
    assert "Under way" in status["text"]
    await s.server.start()
    messages = await s.answer(session)
    assert said(messages, "user") == [("b/m", "say pong")]
    assert said(messages, "assistant") == ANSWERED


async def a_compaction_that_is_throttled_is_repeated_and_no_turn_with_it(s: Scene) -> None:
    await s.forget()
    s.provider.behave("a", "ok")
    s.provider.behave("b", "ok")
    session = await s.asks(text="turn one")
    await s.answer(session)
    await s.server.prompt(session, "a/m", "turn two: deploy")
    await s.server.until(session, lambda found: len(said(found, "assistant")) == 2)
    before = await s.answer(session)
    s.provider.behave("a", "429", retry_after_s=None)
    s.provider.log.clear()
    body = {"providerID": "a", "modelID": "m", "auto": False}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(s.server.call, "POST", f"/session/{session}/summarize", body)
        messages = await s.server.until(session, has_summary)
        tasks.cancel_scope.cancel()
    assert [one["parts"] for one in messages[: len(before)]] == [one["parts"] for one in before]
    assert said(messages, "assistant")[-1][0] == "b/m"
    assert [one.kind for one in s.provider.calls("b")] == ["aux"]
    assert s.provider.calls("a", kind="main") == []
    with anyio.fail_after(HANG_S):
        while (await s.call("session.get", session=session))["rescue"] is not None:
            await anyio.sleep(LOOK_S)


def has_summary(messages: list[dict[str, Any]]) -> bool:
    info = messages[-1]["info"]
    return info.get("summary") is True and info.get("finish") == "stop"


async def a_user_who_stops_the_session_before_the_revert_is_not_overruled(s: Scene) -> None:
    await stopped_at(s, "/revert")


async def a_user_who_stops_the_session_before_it_is_stopped_is_not_overruled(s: Scene) -> None:
    await stopped_at(s, "/abort")


async def stopped_at(s: Scene, step: str) -> None:
    await s.forget()
    s.provider.behave("a", "429", retry_after_s=None)
    s.proxy.hold(step)
    session = await s.asks()
    await s.proxy.held()
    await s.server.call("POST", f"/session/{session}/abort")
    ended = s.daemon.log().count("rescue.stopped")
    s.proxy.release()
    await s.until(lambda: s.daemon.log().count("rescue.stopped") > ended)
    found = await s.call("session.get", session=session)
    assert (found["rescue"], found["current"]) == (None, "a/m")
    assert said(await s.server.messages(session), "user") == [("a/m", "say pong")]
    assert (await s.server.call("GET", f"/session/{session}")).get("revert") is None
    assert s.provider.calls("b", kind="main") == []


PARTS = (
    a_throttled_model_is_left_before_its_third_request,
    a_message_with_a_format_moves_with_it,
    a_compaction_that_is_throttled_is_repeated_and_no_turn_with_it,
    a_user_who_stops_the_session_before_it_is_stopped_is_not_overruled,
    a_user_who_stops_the_session_before_the_revert_is_not_overruled,
    a_fallback_that_is_throttled_too_is_left_for_the_next_one,
    where_all_are_out_the_session_stays_as_it_was,
    what_the_failed_turn_has_written_is_kept,
    a_daemon_that_dies_before_the_revert_finishes_it_when_it_is_back,
    a_daemon_that_dies_before_the_prompt_sends_it_when_it_is_back,
    a_server_that_dies_before_the_prompt_gets_it_when_it_is_back,
)


async def test_with_the_plugin_messages_go_at_once_where_they_will_be_answered(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, plugin=PLUGIN, hostname="0.0.0.0") as s:
        s.provider.behave("a", "429", retry_after_s=None)
        first = await s.asks()
        assert said(await s.answer(first), "assistant") == ANSWERED
        s.provider.log.clear()
        second = await s.asks()
        messages = await s.answer(second)
        assert said(messages, "user") == [("b/m", "say pong")]
        assert said(messages, "assistant") == ANSWERED
        assert s.provider.calls("a", kind="main") == []
        found = await s.call("session.get", session=second)
        (hop,) = found["hops"]
        assert (hop["from"], hop["to"], hop["trigger"]) == ("a/m", "b/m", "preemptive")
        await s.call("health", action="clear")
        s.provider.behave("a", "ok")
        third = await s.asks()
        assert said(await s.answer(third), "assistant") == [("a/m", TEXT)]
        await s.daemon.stop()
        alone = await s.asks()
        assert said(await s.answer(alone), "assistant") == [("a/m", TEXT)]
        await s.until(lambda: notices(s, "fallbackd does not run any more"))
        await s.daemon.start()
        await s.followed(times=2)
        commands = await s.server.call("GET", "/command")
        assert "fallback-status" in [one["name"] for one in commands]
        tools = await s.server.call("GET", "/experimental/tool/ids")
        assert "fallback-status" in tools
        # An argument that opencode's own schemas did not make ends each message of older releases.
        shown = await s.server.call("GET", "/experimental/tool", provider="a", model="m")
        (tool,) = [one for one in shown if one["id"] == "fallback-status"]
        assert tool["parameters"].get("properties", {}) == {}
        await after_its_window_a_model_is_used_again(s)


async def after_its_window_a_model_is_used_again(s: Scene) -> None:
    config = s.daemon.config_path.read_text()
    s.daemon.config_path.write_text(config.replace("window_s = 600", "window_s = 10"))
    await s.call("config.reload")
    await s.forget()
    s.provider.behave("a", "429", retry_after_s=None)
    first = await s.asks()
    assert said(await s.answer(first), "assistant") == ANSWERED
    s.provider.behave("a", "ok")
    with anyio.fail_after(HANG_S):
        while (await s.health("a/m"))["state"] != "healthy":
            await anyio.sleep(LOOK_S)
    second = await s.asks()
    assert said(await s.answer(second), "assistant") == [("a/m", TEXT)]
