"""Prompts on helper servers that outlive the daemon: what the next one makes of them."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.served import (
    LIMIT_S,
    Heard,
    doubles_end,
    leave,
    listening,
    lives,
    notes,
    serving,
    until,
)

from fallbackd.core.protocol import CommandLine, Evidence, NoAnswer, NotStarted, ProcessExit
from fallbackd.ports.transport import Unsent
from fallbackd.transports.opencode.record import PromptRecord, read_prompt, write_prompt
from fallbackd.transports.process.recording import read_chunks

__all__ = ["doubles_end"]
pytestmark = pytest.mark.usefixtures("doubles_end")


def log_of(root: Path) -> list[dict[str, Any]]:
    """The recorded events, by the index: what it does not tell of is not there."""
    chunks = list(read_chunks(str(root / "attempt1")))
    size = (root / "attempt1" / "output.log").stat().st_size
    assert sum(len(each.data) for each in chunks) == size
    return [json.loads(each.data) for each in chunks]


async def test_prompt_goes_on_and_is_followed_to_its_end(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", "delta who", shown="message.part.delta")
    before = log_of(tmp_path)
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        assert running.recorded_bytes == (tmp_path / "attempt1" / "output.log").stat().st_size
        async with listening(running) as heard:
            await until(lambda: bool(place.notes("looked")))
            await script.say("delta le", "text whole", "end")
            with anyio.fail_after(LIMIT_S):
                await heard.ended.wait()
    assert heard.text == "whole"
    assert isinstance(heard.exit, ProcessExit)
    assert (heard.exit.code, heard.exit.gone) == (0, True)
    assert [json.loads(each.data) for each in heard.chunks] == log_of(tmp_path)
    assert log_of(tmp_path)[: len(before)] == before
    deltas = [each["properties"]["delta"] for each in heard.events("message.part.delta")]
    # One that is told between the look and the first live event is in the text alone.
    assert deltas in (["who", "le"], ["who"])
    assert len(heard.events("fallbackd.session")) == len(heard.events("fallbackd.final")) == 1
    assert [each["text"] for each in place.notes("prompt")] == [script.prompt()]
    assert len(place.notes("start")) == 1


async def test_sizes_tell_where_the_past_ends(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", "delta who", shown="message.part.delta")
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        assert running.log_bytes == 0
        await script.say("text whole", "end")
        with anyio.fail_after(LIMIT_S):
            sizes = [running.log_bytes - len(each.data) async for each in running.chunks()]
        assert sizes[0] == 0
        assert running.recorded_bytes in sizes
        assert running.log_bytes == (tmp_path / "attempt1" / "output.log").stat().st_size


async def test_what_ended_while_no_daemon_ran_is_judged_by_what_the_server_has(
    tmp_path: Path,
) -> None:
    script = await leave(tmp_path, "begin", shown="message.part.updated")
    await script.say("delta whole", "text whole", "child", "end")
    async with serving(tmp_path) as place:
        heard = await place.taken_up()
    assert heard.text == "whole"
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.code == 0
    texts = [
        each["properties"]["part"].get("text")
        for each in heard.events("message.part.updated")
        if each["properties"]["part"]["id"] == "prt_o"
    ]
    assert texts == ["", "whole"]
    assert len(heard.events("session.created")) == 1
    assert len(heard.events("session.idle")) == 1


async def test_failure_while_no_daemon_ran_is_one(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", shown="message.part.updated")
    await script.say("fail")
    async with serving(tmp_path) as place:
        heard = await place.taken_up()
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.code == 1
    outcome = heard.reader.outcome(heard.exit)
    assert isinstance(outcome, Evidence)
    assert outcome.http_status == 401


async def test_end_that_the_server_cannot_tell_is_unknown_and_no_success(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", shown="message.part.updated")
    await script.say("text looks whole", "quiet")
    async with serving(tmp_path, settle_s=0.3) as place:
        heard = await place.taken_up()
    assert isinstance(heard.exit, ProcessExit)
    assert (heard.exit.code, heard.exit.signal) == (None, None)
    assert heard.exit.gone
    assert "does not know how" in heard.exit.note
    assert isinstance(heard.reader.outcome(heard.exit), Evidence)


async def test_answer_that_nobody_kept_is_given_again_without_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        first = await place.ask("say once")
    assert first.text == "once"
    async with serving(tmp_path) as place:
        again = await place.taken_up()
        assert len(place.notes("start")) == 1
    assert again.text == "once"
    assert again.exit == first.exit
    assert [each.data for each in again.chunks] == [each.data for each in first.chunks]
    assert [each.at for each in again.chunks] == pytest.approx([each.at for each in first.chunks])


async def test_permission_that_was_asked_for_meanwhile_is_answered(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", shown="message.part.updated", permissions="full")
    await script.say("ask")
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        async with listening(running) as heard:
            await until(lambda: bool(place.notes("permission")))
            await script.say("text done", "end")
            with anyio.fail_after(LIMIT_S):
                await heard.ended.wait()
    assert heard.text == "done"
    assert [each["reply"] for each in place.notes("permission")] == ["once"]
    assert len(heard.events("permission.asked")) == 1


async def test_tool_of_a_prompt_that_was_taken_up_is_known_and_ended_by_a_stop(
    tmp_path: Path,
) -> None:
    await leave(tmp_path, "begin", "tool", shown="message.part.updated")
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        async with listening(running) as heard:
            with anyio.fail_after(LIMIT_S):
                await heard.arrived.wait()
            assert lives(heard.tool_pid)
            assert place.transport.attempts_above(heard.tool_pid) == ("d1.1",)
            running.stop(grace_s=20.0)
            with anyio.fail_after(LIMIT_S):
                await heard.ended.wait()
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.stopped
        assert heard.exit.gone
        assert not lives(heard.tool_pid)
        assert (await place.ask("say still here")).text == "still here"
        assert len(place.notes("start")) == 1


async def test_server_that_ended_with_its_prompt_is_no_success(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", "tool", shown="message.part.updated")
    await script.say("text looks whole")
    (started,) = notes(tmp_path, "start")
    os.kill(started["pid"], signal.SIGKILL)
    async with serving(tmp_path) as place:
        heard = await place.taken_up()
    assert isinstance(heard.exit, ProcessExit)
    assert (heard.exit.code, heard.exit.signal) == (None, 9)
    assert heard.exit.gone
    assert not lives(heard.tool_pid)
    assert isinstance(heard.reader.outcome(heard.exit), Evidence)


async def test_server_of_which_nothing_is_left_is_an_unknown_end(tmp_path: Path) -> None:
    await leave(tmp_path, "begin", shown="message.part.updated")
    (started,) = notes(tmp_path, "start")
    os.kill(started["pid"], signal.SIGKILL)
    await until(lambda: bool(list((tmp_path / "servers").glob("*/*/exit.json"))))
    (runner,) = {runner_of(each) for each in (tmp_path / "servers").glob("*/*/attempt.json")}
    await until(lambda: not lives(runner))
    shutil.rmtree(tmp_path / "servers")
    async with serving(tmp_path) as place:
        heard = await place.taken_up()
    assert isinstance(heard.exit, ProcessExit)
    assert (heard.exit.code, heard.exit.signal, heard.exit.gone) == (None, None, False)
    assert heard.events("message.part.updated")


async def test_other_boot_of_the_machine_is_told(tmp_path: Path) -> None:
    await leave(tmp_path, "begin", shown="message.part.updated")
    record = recorded(tmp_path)
    assert record.identity is not None
    identity = msgspec.structs.replace(record.identity, boot_id="another")
    rewrite(tmp_path, server="gone", identity=identity)
    async with serving(tmp_path) as place:
        heard = await place.taken_up()
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.rebooted


def runner_of(path: Path) -> int:
    """The pid of the runner that wrote it."""
    pid: int = json.loads(path.read_bytes())["runner"]
    return pid


def recorded(root: Path) -> PromptRecord:
    record = read_prompt(str(root / "attempt1"))
    assert record is not None
    return record


def rewrite(root: Path, **changes: Any) -> None:
    changed = msgspec.structs.replace(recorded(root), **changes)
    write_prompt(str(root / "attempt1"), changed)


async def test_prompt_whose_posting_is_in_doubt_and_that_arrived_is_followed(
    tmp_path: Path,
) -> None:
    script = await leave(tmp_path, "begin", shown="message.part.updated")
    rewrite(tmp_path, phase="posting")
    await script.say("text whole", "end")
    async with serving(tmp_path) as place:
        assert (await place.taken_up()).text == "whole"
        assert len(place.notes("prompt")) == 1


async def test_prompt_that_did_not_arrive_cannot_any_more_and_is_started_anew(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path, leaves=True) as place,
        listening(await place.open(place.call("swallow"))),
    ):
        await until(lambda: bool(place.notes("swallowed")))
    session = recorded(tmp_path).session
    assert recorded(tmp_path).phase == "posting"
    async with serving(tmp_path) as place:
        assert await place.attach() == Unsent()
        assert [each["session"] for each in place.notes("delete")] == [session]
        assert not (tmp_path / "attempt1").exists()


async def test_prompt_that_was_only_opened_is_proven_unsent(tmp_path: Path) -> None:
    async with serving(tmp_path, leaves=True) as place:
        await place.open(place.call("say x"))
    assert recorded(tmp_path).phase == "opened"
    async with serving(tmp_path) as place:
        assert await place.attach() == Unsent()
        assert not (tmp_path / "attempt1").exists(), "nobody else may begin it"
        assert place.notes("prompt") == []


async def test_prompt_that_was_stopped_before_its_posting_is_proven_unsent(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path, start="silent", leaves=True) as place,
        listening(await place.open(place.call("say x"))),
    ):
        await until(lambda: bool(place.notes("start")))
    async with serving(tmp_path) as place:
        assert await place.attach() == Unsent()


async def test_a_continued_session_keeps_what_it_held_where_a_posting_is_in_doubt(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, leaves=True) as place:
        await place.ask("say one")
        async with listening(await place.open(place.call("swallow", session="ses_1"))):
            await until(lambda: bool(place.notes("swallowed")))
    async with serving(tmp_path) as place:
        heard = await place.taken_up(2)
        assert heard.exit is not None
        assert heard.exit.gone
        assert place.notes("delete") == []
        assert isinstance(heard.reader.outcome(heard.exit), Evidence)


async def test_prompt_that_cannot_be_written_down_is_not_posted(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        running = await place.open(place.call("say one"))
        shutil.rmtree(tmp_path / "attempt1")
        heard = Heard(running)
        await heard.listen()
        assert isinstance(heard.exit, NotStarted)
        assert (heard.exit.error, heard.exit.path) == ("ENOENT", str(tmp_path / "attempt1"))
        assert place.notes("prompt") == []


async def test_stop_before_the_server_is_found_to_serve_ends_it(tmp_path: Path) -> None:
    await leave(tmp_path, "begin", "tool", shown="message.part.updated")
    (started,) = notes(tmp_path, "start")
    os.kill(started["pid"], signal.SIGSTOP)
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        running.stop(grace_s=0.1)
        heard = Heard(running)
        with anyio.fail_after(LIMIT_S):
            await heard.listen()
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.stopped
        assert heard.exit.gone
        assert not lives(started["pid"])
        assert not lives(heard.tool_pid)


async def test_attempt_without_a_record_is_a_process_or_nothing(tmp_path: Path) -> None:
    run = CommandLine(argv=("sh", "-c", "echo done; sleep 600"), cwd=str(tmp_path))
    async with (
        serving(tmp_path, start="broken", leaves=True) as place,
        listening(await place.open(place.call("say x", otherwise=run))) as heard,
    ):
        await until(lambda: bool(heard.chunks))
    (tmp_path / "attempt2").mkdir()
    async with serving(tmp_path) as place:
        running = await place.attach()
        assert running is not None
        assert running.pid is not None
        assert lives(running.pid)
        again = Heard(running)
        running.stop(grace_s=1.0)
        await again.listen()
        assert [each.data for each in again.chunks] == [b"done\n"]
        assert await place.attach(2) is None


async def test_half_written_event_is_no_event(tmp_path: Path) -> None:
    script = await leave(tmp_path, "begin", "delta who", shown="message.part.delta")
    with (tmp_path / "attempt1" / "output.log").open("ab") as log:
        log.write(b'{"type":"message.part.upd')
    with (tmp_path / "attempt1" / "output.idx").open("ab") as index:
        index.write(b"1000.0 v 2")
    await script.say("text whole", "end")
    async with serving(tmp_path) as place:
        assert (await place.taken_up()).text == "whole"
    assert log_of(tmp_path)[-1]["type"] == "fallbackd.final"
