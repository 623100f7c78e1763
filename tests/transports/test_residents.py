"""Programs that stay after a prompt: which one takes the next, how turns end, what ends them."""

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from tests.support.residents import DOUBLE, Heard, Place, staying
from tests.support.served import LIMIT_S, lives, until


async def test_the_next_prompt_of_a_conversation_needs_no_start(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        first = await place.ask("say one")
        assert (first.text, first.ended.code, first.ended.gone) == ("one", 0, True)
        second = await place.ask("say two", resume="c1")
        assert (second.text, second.ended.code, second.ended.gone) == ("two", 0, True)
        assert len(place.pids) == 1
        assert lives(place.pids[0])
        log = tmp_path / "attempt2" / "output.log"
        assert log.read_bytes() == b"".join(one.data for one in second.chunks)
        assert b"one" not in log.read_bytes()
    assert not lives(place.pids[0])
    assert list((tmp_path / "residents").iterdir()) == []


async def test_each_turn_is_taken_in_the_mode_of_its_prompt(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        await place.ask("say two", resume="c1")
    asked = [one["request"] for one in place.notes("control")]
    assert asked[-1] == {"subtype": "set_permission_mode", "mode": "plan"}


async def test_a_later_turn_says_first_what_its_process_has_counted_before(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        second = await place.ask("say two", resume="c1")
    assert second.events("fallbackd.turn") == [{"type": "fallbackd.turn", "cost_usd": 0.5}]


@pytest.mark.parametrize(
    "other",
    [
        {"words": ("--permission-mode", "plan")},
        {"env": {"OWN": "1"}},
        {"resume": "another"},
        {"resume": None},
        {"may_stay": False},
    ],
    ids=str,
)
async def test_what_differs_in_anything_has_a_process_of_its_own(
    tmp_path: Path, other: dict[str, object]
) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        asked = await place.ask("say two", **{"resume": "c1", **other})
        assert asked.text == "two"
        assert len(set(place.pids)) == 2


async def test_another_directory_has_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    async with staying(tmp_path) as place:
        await place.ask("say one")
        await place.ask("say two", resume="c1", cwd=tmp_path / "elsewhere")
        assert len(set(place.pids)) == 2


async def test_a_conversation_that_goes_on_elsewhere_ends_the_process_that_held_it(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        await place.ask("say two", resume="c1", may_stay=False)
        assert not lives(place.pids[0])


async def test_a_conversation_that_another_program_has_continued_is_read_anew(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        stored = tmp_path / "c1.jsonl"
        stored.write_text("more\n")
        later = stored.stat().st_mtime + 60
        os.utime(stored, (later, later))
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 2
        assert not lives(place.pids[0])


async def test_settings_that_have_changed_need_a_new_process(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
        (tmp_path / "settings").write_text("{}")
        await place.ask("say two", resume="c1")
        assert len(place.pids) == 2


async def test_nothing_stays_where_none_may(tmp_path: Path) -> None:
    async with staying(tmp_path, most=0) as place:
        assert (await place.ask("say one")).ended.code == 0
        await until(lambda: not lives(place.pids[0]))
        (started,) = place.notes("start")
        assert started["mark"] == "d1.1"
        assert not (tmp_path / "attempt1" / "resident.json").exists()


async def test_a_resident_carries_no_mark_of_the_attempt_that_it_was_started_for(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        await place.ask("say one")
    assert place.notes("start")[0]["mark"].startswith("resident:")


async def test_the_one_that_rested_longest_makes_room(tmp_path: Path) -> None:
    async with staying(tmp_path, most=2) as place:
        for number in range(3):
            await place.ask("say x", words=(str(number),))
        assert [lives(pid) for pid in place.pids] == [False, True, True]


async def test_a_prompt_runs_alone_where_every_resident_works(tmp_path: Path) -> None:
    async with staying(tmp_path, most=1) as place:
        working = Heard(await place.open(place.call("hang")))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(working.listen)
            await place.noted("prompt")
            assert (await place.ask("say two", words=("other",))).text == "two"
            assert place.notes("start")[1]["mark"] == "d1.2"
            working.running.stop(grace_s=1)


async def test_nothing_stays_while_memory_is_short(tmp_path: Path) -> None:
    is_free = [True]
    async with staying(tmp_path, has_memory=lambda: is_free[0], look_s=0.01) as place:
        await place.ask("say one")
        is_free[0] = False
        await until(lambda: not lives(place.pids[0]))
        assert (await place.ask("say two", words=("b",))).text == "two"
        assert place.notes("start")[1]["mark"] == "d1.2"


async def test_one_that_is_not_used_ends(tmp_path: Path) -> None:
    async with staying(tmp_path, idle_s=0.01) as place:
        await place.ask("say one")
        await until(lambda: not lives(place.pids[0]))
        assert (await place.ask("say two", resume="c1")).text == "two"


async def test_one_that_was_prepared_and_is_not_used_ends(tmp_path: Path) -> None:
    async with staying(tmp_path, idle_s=0.01) as place:
        assert await place.transport.prepare(place.call("not sent"))
        await place.noted("start")
        await until(lambda: not lives(place.pids[0]))


async def test_a_turn_may_last_longer_than_a_rest(tmp_path: Path) -> None:
    async with staying(tmp_path, idle_s=0.01) as place:
        assert (await place.ask("slow 1")).text == "slow"


async def test_a_prompt_runs_alone_where_the_program_that_would_stay_does_not_start(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        asked = await place.ask("say one", argv=(sys.executable, "-c", "raise SystemExit(2)"))
        assert (asked.text, len(place.notes("prompt"))) == ("one", 1)
        assert place.notes("start")[0]["mark"] == "d1.1"


async def test_a_prompt_that_one_has_taken_runs_nowhere_else(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        asked = await place.ask("limit", argv=(sys.executable, str(DOUBLE), "--other"))
        assert asked.ended.code == 1
        assert len(place.notes("prompt")) == 1


# --- before there is a prompt ---------------------------------------------------------------------


async def test_a_prompt_goes_to_the_program_that_was_prepared_for_it(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        assert await place.transport.prepare(place.call("not sent"))
        assert await place.transport.prepare(place.call("not sent")), "there is one already"
        assert (await place.ask("say one")).text == "one"
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 1
        assert [one["text"] for one in place.notes("prompt")] == ["say one", "say two"]


@pytest.mark.parametrize("other", [{"words": ("--other",)}, {"resume": "c9"}], ids=str)
async def test_what_was_prepared_for_another_prompt_takes_none(
    tmp_path: Path, other: dict[str, object]
) -> None:
    async with staying(tmp_path) as place:
        assert await place.transport.prepare(place.call("not sent"))
        assert (await place.ask("say one", **other)).text == "one"
        assert len(set(place.pids)) == 2


async def test_nothing_is_prepared_where_nothing_may_stay(tmp_path: Path) -> None:
    async with staying(tmp_path, most=0) as place:
        assert not await place.transport.prepare(place.call("x"))
    (tmp_path / "b").mkdir()
    async with staying(tmp_path / "b") as place:
        assert not await place.transport.prepare(place.call("x", may_stay=False))
        assert place.pids == []


async def test_a_program_that_does_not_come_up_leaves_the_prompt_to_a_new_one(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        place.start = "refuses-to-start"
        assert await place.transport.prepare(place.call("x"))
        assert (await place.ask("say one")).ended.code == 2
        assert len(set(place.pids)) == 2
        assert place.notes("prompt") == []


async def test_a_caller_that_hangs_up_amid_a_start_leaves_a_program_that_is_known(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path, most=1) as place:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.transport.prepare, place.call("not sent"))
            await until(lambda: bool(place.transport.list()))
            tasks.cancel_scope.cancel()
        with anyio.fail_after(LIMIT_S):
            assert (await place.ask("say one")).text == "one"
            assert (await place.ask("say two", cwd=place.root)).text == "two"


async def test_a_start_that_breaks_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    async with staying(tmp_path, most=1) as place:
        with pytest.raises(ValueError, match="surrogates"):
            await place.transport.prepare(place.call("not sent", words=("\ud800",)))
        with anyio.fail_after(LIMIT_S):
            assert (await place.ask("say one")).text == "one"


async def test_what_rests_and_would_obey_a_directory_at_once_ends_before_that_is_written(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        assert (await place.ask("say one")).text == "one"
        assert await place.transport.prepare(place.call("not sent"))
        await place.noted("start", 2)
        assert await place.transport.prepare(place.call("not sent", watches=False))
        await place.noted("start", 3)
        mine = place.call("say two", resume="c1")
        await place.transport.end_watchers(mine, str(place.work))
        assert len(place.transport.list()) == 2, "the one of its conversation, and what looks later"
        await place.transport.end_watchers(place.call("x", words=("--other",)), "/elsewhere")
        assert len(place.transport.list()) == 2
        await place.transport.end_watchers(place.call("x", words=("--other",)), str(tmp_path))
        (left,) = place.transport.list()
        assert left.pid == place.pids[2]


# --- turns that end badly ------------------------------------------------------------------------


async def test_a_limit_of_the_provider_leaves_a_clean_turn(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        limited = await place.ask("limit")
        assert (limited.ended.code, limited.ended.gone) == (1, True)
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 1


async def test_a_stopped_turn_is_interrupted_and_its_process_stays(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        stopped = await place.ask("hang", when=lambda heard: heard.running.stop(grace_s=30))
        assert stopped.ended.stopped
        assert stopped.ended.gone
        assert place.notes("interrupt")
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 1


async def test_a_late_answer_to_a_turn_that_was_cancelled_is_no_answer_to_the_next(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        await place.ask("hang late", when=lambda heard: heard.running.stop(grace_s=30))
        second = await place.ask("limit", resume="c1")
        assert [one["result"] for one in second.events("result")] == ["limit reached"]


async def test_one_that_does_not_hear_an_interrupt_is_ended(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        stopped = await place.ask("deaf", when=lambda heard: heard.running.stop(grace_s=0))
        assert stopped.ended.stopped
        assert stopped.ended.gone
        assert not lives(place.pids[0])


async def test_one_that_is_held_in_its_turn_is_ended_by_a_stop(tmp_path: Path) -> None:
    def hold(heard: Heard) -> None:
        os.kill(place.pids[0], signal.SIGSTOP)
        heard.running.stop(grace_s=0)

    async with staying(tmp_path) as place:
        stopped = await place.ask("hang", when=hold)
        assert stopped.ended.gone
        assert not lives(place.pids[0])


async def test_one_that_dies_in_its_turn_ends_the_attempt_as_the_program_did(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        died = await place.ask("die")
        assert (died.ended.code, died.ended.gone, died.text) == (3, True, None)
        assert (await place.ask("say two")).text == "two"


@pytest.mark.parametrize("end", ["then-die", "then-deaf"])
async def test_a_prompt_that_was_not_sent_yet_goes_to_a_new_process(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd.transports.resident.resident.ANSWER_S", 0.5)
    async with staying(tmp_path) as place:
        assert (await place.ask(end)).text == "last words"
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert [one["text"] for one in place.notes("prompt")] == [end, "say two"]
        assert len(place.pids) == 2
        assert not lives(place.pids[0])


async def test_what_is_printed_between_two_turns_belongs_to_no_attempt(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        first = await place.ask("then-noise")
        second = await place.ask("say two", resume="c1")
        assert (first.text, second.text) == ("quiet", "two")
        assert b"stray" not in first.output + second.output


async def test_garbage_in_a_turn_is_handed_on_and_ends_nothing(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        noisy = await place.ask("noise")
        assert b"{broken" in noisy.output
        assert noisy.text == "noise"


async def test_more_output_than_fits_anywhere_is_read_to_its_end(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        many = await place.ask("many 300")
        assert len(many.output) > 300 * 65_000
        assert many.text == "many"
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 1


async def test_what_it_asks_for_is_answered_with_a_refusal(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        assert (await place.ask("ask")).text == "asked"
    (told,) = place.notes("told")
    assert told["event"]["response"]["subtype"] == "error"


async def test_a_tool_that_outlives_its_turn_is_ended_before_the_turn_is(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        turn = await place.ask("tool")
        assert turn.ended.gone
        assert not lives(place.notes("child")[0]["child"])
        assert (await place.ask("say two", resume="c1")).text == "two"
        assert len(place.pids) == 1


async def test_a_helper_that_came_in_a_turn_ends_the_process_with_it(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        turn = await place.ask("helper")
        assert (turn.text, turn.ended.code, turn.ended.gone) == ("helper left running", 0, True)
        assert not lives(place.notes("child")[0]["child"])
        assert not lives(place.pids[0])


async def test_a_program_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        place.start = "refuses-to-start"
        turn = await place.ask("say one")
        assert turn.ended.code == 2
        assert b"not logged in" in b"".join(one.data for one in turn.chunks)
        assert place.notes("prompt") == []


async def test_a_program_that_does_not_know_the_way_in_runs_as_before(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        place.start = "old"
        for number in (1, 2):
            assert (await place.ask("say one")).text == "one"
            assert place.notes("start")[-1]["mark"] == f"d1.{number}"
        assert len(place.pids) == 3
        assert len(place.notes("prompt")) == 2


async def test_noise_before_it_is_ready_is_no_reason_to_wait(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        place.start = "noisy"
        assert (await place.ask("say one")).text == "one"


async def test_a_stop_before_the_prompt_was_sent_sends_none(tmp_path: Path) -> None:
    async with staying(tmp_path) as place:
        running = await place.open(place.call("say one"))
        running.stop(grace_s=0)
        heard = await Heard(running).listen()
        assert heard.ended.stopped
        assert heard.ended.gone
        assert place.notes("prompt") == []


async def test_a_stop_before_the_prompt_was_sent_leaves_one_that_rests_as_it_was(
    tmp_path: Path,
) -> None:
    async with staying(tmp_path) as place:
        assert (await place.ask("say one")).text == "one"
        (pid,) = place.pids
        os.kill(pid, signal.SIGSTOP)
        heard = Heard(await place.open(place.call("say two", resume="c1")))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heard.listen)
            await until(lambda: place.transport.list()[0].state == "working")
            heard.running.stop(grace_s=0)
        os.kill(pid, signal.SIGCONT)
        assert (heard.ended.stopped, heard.ended.gone) == (True, True)
        assert (await place.ask("say three", resume="c1")).text == "three"
        assert place.pids == [pid]


# --- a daemon that ends --------------------------------------------------------------------------


async def left_in_its_turn(
    root: Path, prompt: str, *, is_killed: bool = False, **more: object
) -> Place:
    """A turn that a daemon leaves under way."""
    async with staying(root, leaves=not is_killed, is_killed=is_killed) as place:
        if more:
            await place.ask("say first")
        heard = Heard(await place.open(place.call(prompt, **more)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heard.listen)
            await place.noted("prompt", 2 if more else 1)
            await until(lambda: heard.events("system"))
            tasks.cancel_scope.cancel()
    return place


@pytest.mark.parametrize("more", [{}, {"resume": "c1"}], ids=["first", "later"])
async def test_a_later_daemon_takes_the_turn_up(tmp_path: Path, more: dict[str, str]) -> None:
    number = 2 if more else 1
    before = await left_in_its_turn(tmp_path, "slow 1", **more)
    async with staying(tmp_path) as place:
        heard = await place.taken_up(number)
        assert (heard.text, heard.ended.code, heard.ended.gone) == ("slow", 0, True)
        log = tmp_path / f"attempt{number}" / "output.log"
        assert log.read_bytes() == b"".join(one.data for one in heard.chunks)
        assert len(heard.events("system")) == 1
        await until(lambda: not lives(before.pids[0]))
    async with staying(tmp_path) as place:
        again = await place.taken_up(number)
        assert (again.text, again.ended) == ("slow", heard.ended)


async def test_what_rests_ends_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    async with staying(tmp_path, is_killed=True) as place:
        await place.ask("say one")
        assert await place.transport.prepare(place.call("not sent", words=("other",)))
        await place.noted("start", 2)
    await until(lambda: not any(map(lives, place.pids)))


@pytest.mark.parametrize("more", [{}, {"resume": "c1"}], ids=["first", "later"])
async def test_a_turn_without_a_daemon_goes_to_its_end_and_so_does_its_process(
    tmp_path: Path, more: dict[str, str]
) -> None:
    number = 2 if more else 1
    before = await left_in_its_turn(tmp_path, "slow 1", is_killed=True, **more)
    assert lives(before.pids[0])
    await until(lambda: not lives(before.pids[0]))
    async with staying(tmp_path) as place:
        heard = await place.taken_up(number)
        assert (heard.text, heard.ended.code, heard.ended.gone) == ("slow", 0, True)
        assert len(heard.events("system")) == 1


async def test_a_later_daemon_ends_what_rests(tmp_path: Path) -> None:
    async with staying(tmp_path, leaves=True) as place:
        await place.ask("say one")
    await until(lambda: not lives(place.pids[0]))


async def test_a_turn_that_is_not_taken_up_ends_with_its_resident(tmp_path: Path) -> None:
    before = await left_in_its_turn(tmp_path, "hang")
    async with staying(tmp_path, stray_s=0.01):
        await until(lambda: not lives(before.pids[0]))


async def test_what_cannot_be_taken_up_is_ended_and_proven_so(tmp_path: Path) -> None:
    before = await left_in_its_turn(tmp_path, "hang")
    async with staying(tmp_path) as place:
        assert await place.transport.end_leftover("d1.1", str(tmp_path / "attempt1"))
        assert not lives(before.pids[0])


async def test_a_turn_whose_way_a_daemon_does_not_know_ends_with_a_proof(tmp_path: Path) -> None:
    before = await left_in_its_turn(tmp_path, "hang")
    (record,) = (tmp_path / "residents").glob("*/turn.json")
    record.write_text(record.read_text().replace('"claude"', '"of another version"'))
    async with staying(tmp_path) as place:
        assert (await place.taken_up()).ended.gone
        assert await place.transport.end_leftover("d1.1", str(tmp_path / "attempt1"))
        assert not lives(before.pids[0])


async def test_what_is_no_resident_in_their_directory_keeps_no_daemon_from_starting(
    tmp_path: Path,
) -> None:
    (tmp_path / "residents").mkdir(mode=0o700)
    (tmp_path / "residents" / "notes").write_text("of a person\n")
    async with staying(tmp_path) as place:
        assert (await place.ask("say one")).text == "one"
