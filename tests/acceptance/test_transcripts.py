"""What an agent said and did, as text for people and as events."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from tests.contrib.agents import write
from tests.support.agents import backend_script
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running

EVENTS = r"""
cat >/dev/null
echo '{"type":"thread.started","thread_id":"t1"}'
echo '{"type":"item.completed","item":{"id":"i0","type":"agent_message","text":"Looking."}}'
echo '{"type":"item.started","item":{"id":"i1","type":"command_execution","command":"ls -l"}}'
echo '{"type":"item.completed","item":{"id":"i1","type":"command_execution","command":"ls -l"}}'
echo '{"type":"error","message":"Reconnecting... 1/5 (stream \u001b[2J closed)"}'
echo 'noise for people' >&2
echo '{"type":"item.completed","item":{"id":"i2","type":"agent_message","text":"Two files."}}'
printf '{"type":"turn.completed","usage":{"input_tokens":3,"output_tokens":2}}'
"""
TEXT = """\
Looking.
> command_execution "ls -l"
! trying again: stream closed
Two files.
"""


async def _done(daemon: Daemon, backend: str) -> str:
    asked = {"prompt": "x", "backend": backend, "wait": "finished", "session": "s"}
    found = await daemon.client.call("delegate", asked)
    assert found["state"] == "succeeded", found
    name: str = found["delegation"]
    return name


async def test_messages_tools_and_failures_are_told_in_order(tmp_path: Path) -> None:
    write(tmp_path, "codex", EVENTS)
    async with running(tmp_path) as daemon:
        name = await _done(daemon, "codex")
        shown = await run_client(daemon.socket, "log", name)
        assert (shown.code, shown.out) == (0, TEXT)
        raw = await run_client(daemon.socket, "log", "--raw", name)
        assert "thread.started" in raw.out
        followed = await run_client(daemon.socket, "log", "-f", name)
        assert followed.out == TEXT


async def test_a_text_can_be_read_on_from_any_piece(tmp_path: Path) -> None:
    # Printed in many pieces, of which each call reads one.
    write(tmp_path, "codex", EVENTS.replace("\necho", "\nsleep 0.02; echo"))
    async with running(tmp_path) as daemon:
        params: dict[str, Any] = {"delegation": await _done(daemon, "codex"), "form": "text"}
        told, pieces = "", 0
        while True:
            part = await daemon.client.call("delegation.log", {**params, "max_bytes": 1})
            told += part["text"]
            pieces += 1
            params["offset"] = part["next_offset"]
            if part["ended"]:
                break
        assert told == TEXT
        assert pieces > 1


async def test_what_prints_text_is_shown_as_it_is(tmp_path: Path) -> None:
    body = "cat >/dev/null; echo one; echo two >&2; echo three"
    async with running(tmp_path, backend_script(tmp_path, "plain", body)) as daemon:
        shown = await run_client(daemon.socket, "log", await _done(daemon, "plain"))
        assert sorted(shown.out.split()) == ["one", "three", "two"]


async def test_phases_and_text_come_as_events_where_they_are_named(tmp_path: Path) -> None:
    waits = 'while [ ! -e "$HOME/goes" ]; do sleep 0.05; done'
    write(tmp_path, "codex", f"{waits}\n{EVENTS}")
    async with running(tmp_path) as daemon:
        asked = {"prompt": "x", "backend": "codex", "wait": "accepted"}
        name = (await daemon.client.call("delegate", asked))["delegation"]
        heard: list[dict[str, Any]] = []
        kinds = ["attempt.started", "attempt.phase", "attempt.text", "delegation.ended"]
        with anyio.fail_after(HANG_S):
            async with aclosing(daemon.client.events(kinds=kinds, since=0)) as events:
                async for event in events:
                    heard.append(event)
                    if event["kind"] == "attempt.started":
                        (daemon.home / "goes").touch()
                    if event["kind"] == "delegation.ended":
                        break
        assert {one["delegation"] for one in heard} == {name}
        pieces = [one for one in heard if one["kind"] == "attempt.text"]
        assert "".join(one["text"] for one in pieces) == "Looking.\nTwo files.\n"
        assert "seq" not in pieces[0]
        phases = [one["phase"] for one in heard if one["kind"] == "attempt.phase"]
        assert phases[-1] == "writing"
