"""Prompts to a helper server: how they go, end and are stopped."""

import os
from pathlib import Path

import anyio
import pytest
from tests.support.served import (
    LIMIT_S,
    Heard,
    Place,
    Ticks,
    listening,
    lives,
    serving,
    stop_at,
    until,
)
from tests.support.wires import each_wire, only_version_1

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    WRONG_VERSION,
    CommandLine,
    Evidence,
    GivenUp,
    HttpRequest,
    NoAnswer,
    NotStarted,
    ProcessExit,
    Retrying,
    ToolStarted,
)
from fallbackd.transports.opencode.server import ServerPlaces
from fallbackd.transports.opencode.transport import ServedTransport
from fallbackd.transports.process.transport import ProcessTransport

__all__ = ["each_wire"]
pytestmark = pytest.mark.usefixtures("each_wire")


async def test_answer_is_handed_on_event_by_event_and_recorded(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("replay answer", model="some/model/x", agent="build")
        assert heard.text == "whole answer"
        assert isinstance(heard.exit, ProcessExit)
        assert heard.exit.code == 0
        assert heard.exit.gone
        assert heard.events("message.part.delta")
        assert heard.events("session.updated") == []
        assert all(each.data.endswith(b"\n") for each in heard.chunks)
        log = tmp_path / "attempt1" / "output.log"
        assert log.read_bytes() == b"".join(each.data for each in heard.chunks)
        assert log.stat().st_mode & 0o777 == 0o600
        assert heard.running.log_bytes == log.stat().st_size
    asked = place.notes("prompt")[0]
    assert asked["model"] == {"providerID": "some", "modelID": "model/x"}
    assert asked["cwd"] == str(place.work)


async def test_second_prompt_uses_the_same_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        assert (await place.ask("say one")).text == "one"
        assert (await place.ask("say two")).text == "two"
        assert len(place.notes("start")) == 1
        assert (await place.ask("say three", key="other")).text == "three"
        assert len(place.notes("start")) == 2


async def test_unused_server_of_another_directory_makes_room_for_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        for name in ("a", "b", "a"):
            assert (await place.ask("say x", key=f"k/{name}", family="k/")).text == "x"
        first, second, third = (each["pid"] for each in place.notes("start"))
        await until(lambda: not lives(first) and not lives(second))
        assert lives(third)
        assert (await place.ask("say y", key="shared")).text == "y"
        assert lives(third)


async def test_a_prompt_continues_a_session_and_hears_nothing_of_what_it_held(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as place:
        await place.ask("say one")
        heard = await place.ask("say two", session="ses_1")
        assert heard.text == "two"
        missed = await place.ask("gap", session="ses_1")
        assert missed.text == "unheard"
        assert [each["session"] for each in place.notes("prompt")] == ["ses_1"] * 3
        told = [
            each["properties"].get("info", {}).get("id")
            for each in missed.events("message.updated")
        ]
        assert set(told) == {"msg_u", "msg_a2"}


async def test_a_session_that_is_not_there_is_not_continued(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("say two", session="ses_9")
        assert isinstance(heard.exit, ProcessExit)
        outcome = heard.reader.outcome(heard.exit)
        assert isinstance(outcome, Evidence)
        failure = classify(outcome, KINDS["opencode"].rules, now=0.0)
        assert failure is not None
        assert failure.detail == NO_CONVERSATION
        assert place.notes("prompt") == []


async def test_prompts_at_the_same_time_hear_their_own_events_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = [Heard(await place.open(place.call(f"say {n}"))) for n in range(5)]
        async with anyio.create_task_group() as tasks:
            for each in heard:
                tasks.start_soon(each.listen)
        assert [each.text for each in heard] == [str(n) for n in range(5)]
        assert len(place.notes("start")) == 1


async def test_failure_is_told_before_the_turn_ends_and_ends_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("replay unauthorized")
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.code == 1
    assert [each.evidence.http_status for each in heard.seen if isinstance(each, GivenUp)] == [401]


async def test_failure_that_compaction_cures_ends_well(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("replay compacted")
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.code == 0


async def test_refused_prompt_is_told_like_a_failure_of_the_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("refuse")
        assert isinstance(heard.exit, ProcessExit)
        assert heard.exit.code == 1
        error = heard.events("session.error")[0]["properties"]["error"]
        assert error == {
            "name": "BadRequest",
            "data": {"message": "no such thing", "statusCode": 400},
        }
        (tmp_path / "nowhere").mkdir()
        heard = await place.ask("say x", cwd=tmp_path / "nowhere")
        assert heard.events("session.error")


async def test_events_of_a_subagent_are_handed_on_and_do_not_end_the_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("child")
        assert heard.text == "with help"
    sessions = {each["properties"]["sessionID"] for each in heard.events("session.status")}
    assert sessions == {"ses_1", "ses_child"}


async def test_end_of_a_turn_is_found_after_a_gap_in_the_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("gap")
        assert heard.text == "unheard"


@pytest.mark.parametrize(("permissions", "reply"), [("workspace", "reject"), ("full", "once")])
async def test_permission_is_answered_by_policy(
    tmp_path: Path, permissions: str, reply: str
) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("ask", permissions=permissions)
        assert heard.text == f"permission {reply}"
    assert [each["reply"] for each in place.notes("permission")] == [reply]
    recorded = [each["properties"]["permission"] for each in heard.events("fallbackd.permission")]
    assert recorded == (["bash"] if reply == "reject" else [])


async def test_question_is_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        assert (await place.ask("question")).text == "question reject"


async def test_stop_aborts_a_prompt_that_retries_and_keeps_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("retry", when=stop_at(Retrying))
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.stopped
        assert heard.exit.gone
        assert len(place.notes("abort")) == 1
        assert (await place.ask("say still here")).text == "still here"
        assert len(place.notes("start")) == 1


@pytest.mark.parametrize("tool", ["tool", "stubborn"])
async def test_stop_leaves_no_tool_behind(tmp_path: Path, tool: str) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask(tool, when=stop_at(ToolStarted))
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.gone
        assert not lives(heard.tool_pid)
        assert (await place.ask("say still here")).text == "still here"
        assert len(place.notes("start")) == 1


@pytest.mark.parametrize("first", ["the tool", "the stopped prompt"])
async def test_tool_of_another_prompt_is_spared(tmp_path: Path, first: str) -> None:
    other_work = tmp_path / "other"
    other_work.mkdir()
    async with serving(tmp_path) as place, anyio.create_task_group() as tasks:
        other = Heard(await place.open(place.call("tool", cwd=other_work)))
        heard = Heard(await place.open(place.call("stubborn")))
        for each in (other, heard) if first == "the tool" else (heard, other):
            tasks.start_soon(each.listen)
            with anyio.fail_after(LIMIT_S):
                await each.arrived.wait()
        assert place.transport.attempts_above(other.tool_pid) == ("d1.1", "d1.2")
        assert place.transport.attempts_above(heard.tool_pid) == ("d1.2", "d1.1")
        assert place.transport.attempts_above(os.getpid()) is None
        heard.running.stop(grace_s=20.0)
        await until(lambda: not lives(heard.tool_pid))
        with anyio.fail_after(LIMIT_S):
            await heard.ended.wait()
        assert lives(other.tool_pid)
        other.running.stop(grace_s=20.0)
    assert isinstance(other.exit, NoAnswer)
    assert not lives(other.tool_pid)


async def test_a_server_without_a_prompt_works_for_no_attempt(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        await place.ask("say done")
        assert place.transport.attempts_above(place.notes("start")[0]["pid"]) == ()


async def test_tool_left_behind_by_an_answered_prompt_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask("leaky")
        assert heard.text == "left something behind"
        assert isinstance(heard.exit, ProcessExit)
        assert heard.exit.gone
        assert not lives(heard.tool_pid)


async def test_abort_without_effect_ends_the_server_and_everything_on_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as place, anyio.create_task_group() as tasks:
        other = Heard(await place.open(place.call("tool")))
        tasks.start_soon(other.listen)
        with anyio.fail_after(LIMIT_S):
            await other.arrived.wait()
        heard = await place.ask("unstoppable", when=stop_at(Retrying, grace_s=0.1))
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.stopped
        assert heard.exit.gone
        assert not lives(place.notes("start")[0]["pid"])
        with anyio.fail_after(LIMIT_S):
            await until(lambda: not lives(other.tool_pid))
    assert isinstance(other.exit, NoAnswer)
    assert not other.exit.stopped
    assert other.exit.gone


@pytest.mark.parametrize(("how", "code", "signal"), [("die", 3, None), ("killed", None, 9)])
async def test_server_that_ends_under_a_prompt_is_its_evidence_and_the_next_one_starts_anew(
    tmp_path: Path, how: str, code: int | None, signal: int | None
) -> None:
    async with serving(tmp_path) as place:
        heard = await place.ask(how)
        assert isinstance(heard.exit, ProcessExit)
        assert (heard.exit.code, heard.exit.signal) == (code, signal)
        assert heard.exit.gone
        if how == "die":
            assert "panic: out of luck" in heard.exit.note
        assert (await place.ask("say back")).text == "back"
        assert len(place.notes("start")) == 2


async def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path, start="broken") as place:
        heard = await place.ask("say x")
    assert isinstance(heard.exit, ProcessExit)
    assert heard.exit.code == 1
    assert "Error: Config file is not valid JSON(C)" in heard.exit.note
    assert [each.stream for each in heard.chunks] == ["stderr"]


async def test_where_no_server_comes_up_the_prompt_is_run_without_one(tmp_path: Path) -> None:
    run = CommandLine(argv=("sh", "-c", "cat; echo done"), cwd=str(tmp_path), stdin=b"prompt ")
    async with serving(tmp_path, start="broken") as place:
        heard = await place.ask("say x", otherwise=run)
    assert isinstance(heard.exit, ProcessExit)
    assert (heard.exit.code, heard.exit.gone) == (0, True)
    assert b"".join(each.data for each in heard.chunks) == b"prompt done\n"
    assert (tmp_path / "attempt1" / "output.log").read_text() == "prompt done\n"


async def test_a_server_of_version_3_is_named_and_nothing_is_run_in_its_place(
    tmp_path: Path,
) -> None:
    run = CommandLine(argv=("sh", "-c", "echo done"), cwd=str(tmp_path))
    async with serving(tmp_path, start="version-3") as place:
        heard = await place.ask("say x", otherwise=run)
        assert isinstance(heard.exit, NotStarted)
        assert (heard.exit.error, heard.exit.gone) == (WRONG_VERSION, True)
        assert heard.exit.text.startswith("opencode 3.0.0 is not supported yet")
        assert b"done" not in b"".join(each.data for each in heard.chunks)
        assert all(not lives(each["pid"]) for each in place.notes("start"))


async def test_what_runs_without_a_server_is_stopped_with_its_children(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $!; wait; sleep 300"
    run = CommandLine(argv=("sh", "-c", script), cwd=str(tmp_path))
    async with serving(tmp_path, start="broken") as place:
        running = await place.open(place.call("say x", otherwise=run))
        with anyio.fail_after(LIMIT_S):
            async for chunk in running.chunks():
                pid = int(chunk.data)
                running.stop(grace_s=0.1)
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.stopped
    assert running.exit.gone
    assert not lives(pid)


async def test_missing_program_is_not_started(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        server = CommandLine(argv=(str(tmp_path / "missing"), "serve"), cwd=str(tmp_path))
        heard = await place.ask("say x", server=server)
    assert isinstance(heard.exit, NotStarted)
    assert heard.exit.error == "ENOENT"


async def test_server_that_never_listens_is_ended_at_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, start="silent", start_s=1.0) as place:
        heard = await place.ask("say x")
        assert isinstance(heard.exit, NoAnswer)
        assert heard.exit.exception == "ConnectTimeout"
        assert heard.exit.gone
        assert all(not lives(each["pid"]) for each in place.notes("start"))


async def test_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path, start="port-taken-once") as place:
        assert (await place.ask("say here")).text == "here"
        assert len(place.notes("start")) == 2


async def test_stop_while_the_server_starts_ends_the_prompt_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, start="silent", start_s=600.0) as place:
        heard = Heard(await place.open(place.call("say x")))
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heard.listen)
                await until(lambda: bool(place.notes("start")))
                heard.running.stop(grace_s=5.0)
    assert isinstance(heard.exit, NoAnswer)
    assert heard.exit.stopped
    assert not lives(place.notes("start")[0]["pid"])


async def test_caller_that_leaves_early_leaves_its_prompt_under_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        async with listening(await place.open(place.call("tool"))) as heard:
            with anyio.fail_after(LIMIT_S):
                await heard.arrived.wait()
        assert lives(heard.tool_pid)
        assert place.notes("abort") == []
    assert not lives(heard.tool_pid)


async def test_caller_that_comes_back_gets_its_prompt_stopped_and_not_posted_again(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as place:
        running = await place.open(place.call("tool"))
        async with listening(running) as heard:
            with anyio.fail_after(LIMIT_S):
                await heard.arrived.wait()
        running.stop(grace_s=20.0)
        await Heard(running).listen()
        assert isinstance(running.exit, NoAnswer)
        assert running.exit.stopped
        assert running.exit.gone
        assert not lives(heard.tool_pid)
        assert len(place.notes("prompt")) == 1


async def test_unused_server_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_s=0.05) as place:
        await place.ask("say x")
        started = place.notes("start")[0]
        await until(lambda: not lives(started["pid"]))
        await until(lambda: list((tmp_path / "servers").iterdir()) == [])
        assert started["tmpdir"].startswith(str(tmp_path / "servers"))
        assert (await place.ask("say again")).text == "again"


async def test_closing_ends_all_servers(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        await place.ask("say x")
        await place.ask("say x", key="other")
    started = place.notes("start")
    assert len(started) == 2
    assert not any(lives(each["pid"]) for each in started)
    assert list((tmp_path / "servers").iterdir()) == []


async def test_cancelled_daemon_ends_its_servers(tmp_path: Path) -> None:
    processes = ProcessTransport()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            transport = ServedTransport(
                processes, tasks=tasks, directory=str(tmp_path / "servers"), clock=Ticks()
            )
            place = Place(transport, tmp_path, "")
            await place.ask("say x")
            tasks.cancel_scope.cancel()
    assert not lives(place.notes("start")[0]["pid"])
    await processes.aclose()


async def test_password_and_prompt_are_in_no_repr_and_the_password_in_no_argv(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as place:
        running = await place.open(place.call("retry my secret plan"))
        heard = Heard(running)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heard.listen)
            with anyio.fail_after(LIMIT_S):
                await heard.arrived.wait()
            pid = place.notes("start")[0]["pid"]
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            password = next(
                each.partition(b"=")[2]
                for each in environment
                if each.startswith(b"OPENCODE_SERVER_PASSWORD=")
            )
            assert len(password) >= 24
            assert password not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert "secret plan" not in repr(running)
            running.stop(grace_s=20.0)
    assert password not in b"".join(each.data for each in heard.chunks)


async def test_another_kind_of_call_is_a_wiring_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        with pytest.raises(TypeError, match="served prompt"):
            await place.transport.open(
                HttpRequest(method="GET", url="http://x"),
                attempt="d1.1",
                directory=str(tmp_path),
                env=dict(os.environ),
            )


@only_version_1
async def test_what_a_directory_needs_ends_with_its_last_prompt(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for each in (one, two):
        each.mkdir()
    async with serving(tmp_path) as place:
        async with listening(await place.open(place.call("tool", cwd=one))) as first:
            await first.arrived.wait()
            await place.ask("say one", cwd=one)
            await place.ask("say two", cwd=two)
            await until(lambda: bool(place.notes("dispose")))
            assert [each["cwd"] for each in place.notes("dispose")] == [str(two)]
            first.running.stop(grace_s=20)
            await first.ended.wait()
        await until(lambda: len(place.notes("dispose")) == 2)
        last = place.notes("dispose")[-1]
        assert (last["cwd"], any(last["busy"])) == (str(one), False)
        assert (await place.ask("say again", cwd=one)).text == "again"


async def test_a_directory_is_not_entered_while_it_is_being_left() -> None:
    release, left = anyio.Event(), []

    async def dispose(cwd: str) -> None:
        left.append(cwd)
        await release.wait()

    places, entered = ServerPlaces(dispose), anyio.Event()

    async def enter() -> None:
        await places.enter("/one")
        entered.set()

    async with anyio.create_task_group() as tasks:
        await places.enter("/one")
        assert places.leave("/one")
        tasks.start_soon(places.dispose, "/one")
        await until(lambda: left == ["/one"])
        tasks.start_soon(enter)
        await places.enter("/two")
        assert not entered.is_set()
        release.set()
        await entered.wait()
    await places.dispose("/one")
    assert left == ["/one"]
