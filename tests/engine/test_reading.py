"""Answers, logs and events, as callers read them."""

import gc
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.running_engine import (
    HANG_S,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    tried,
    until,
    work,
)
from tests.support.scripts import script

from fallbackd.core.records import Delegation
from fallbackd.engine.api import Engine
from fallbackd.engine.reading import Reader
from fallbackd.engine.requests import LogPart, NewWork, Unknown

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"


async def read(engine: Engine, found: Delegation, offset: int = 0, size: int = 65_536) -> LogPart:
    return await engine.log(found.delegation, attempt=None, offset=offset, max_bytes=size)


async def test_an_answer_is_there_as_long_as_its_delegation(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        done = await work(engine, backend="a")
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        found = await engine.delegation(done.delegation)
        assert found == done
        assert await engine.text(found) == "answer of a"
        answer = tmp_path / "runs" / done.delegation / "answer"
        assert answer.stat().st_mode & 0o777 == 0o600


async def test_failed_work_has_no_answer(tmp_path: Path) -> None:
    body = "cat >/dev/null; echo half an answer; exit 1"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        assert done.state != "succeeded"
        assert await engine.text(done) is None


async def test_a_log_is_read_in_pieces_of_any_size(tmp_path: Path) -> None:
    text = "grün, 漢字 und 🙂\n"
    body = f"cat >/dev/null; printf '%s\\n' '{text.strip()}'"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        for size in (1, 2, 3, 5, 7, 1000):
            offset, pieces = 0, []
            while True:
                part = await read(engine, done, offset, size)
                assert part.offset == offset
                pieces.append(part.text)
                if part.ended:
                    break
                assert part.next_offset > offset
                offset = part.next_offset
            assert "".join(pieces) == text
            assert part.next_offset == part.size_bytes == len(text.encode())


async def test_a_log_is_read_while_it_grows(tmp_path: Path) -> None:
    body = r"""
        cat >/dev/null
        printf 'one gr\303'
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        printf '\274n two'
        """
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        with anyio.fail_after(HANG_S):
            while (part := await read(engine, begun)).size_bytes < 7:
                await anyio.sleep(0.01)
        assert part.text == "one gr"  # the character that has only begun comes later
        assert not part.ended
        (tmp_path / "go").touch()
        await ended(engine, begun)
        rest = await read(engine, begun, part.next_offset)
        assert rest.text == "ün two"
        assert rest.ended


async def test_a_piece_is_no_longer_than_asked_for_and_never_half_a_character(
    tmp_path: Path,
) -> None:
    body = "cat >/dev/null; printf 'abcdefg🙂h'"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        for size in (1, 2, 3, 6):
            assert (await read(engine, done, 0, size)).text == "abcdefg"[:size]
        assert (await read(engine, done, 6, 3)).text == "g"
        assert (await read(engine, done, 7, 3)).text == "🙂"
        last = await read(engine, done, 11, 1)
        assert (last.text, last.ended) == ("h", True)


async def test_a_log_that_ends_amid_a_character_is_read_to_its_end(tmp_path: Path) -> None:
    body = r"cat >/dev/null; printf 'ab\360\237'"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        offset, texts = 0, []
        for _ in range(4):
            part = await read(engine, done, offset, 1)
            texts.append(part.text)
            if part.ended:
                break
            offset = part.next_offset
        assert "".join(texts) == "ab\N{REPLACEMENT CHARACTER}"
        assert part.ended


async def test_a_log_without_an_attempt_is_empty_until_the_delegation_ends(tmp_path: Path) -> None:
    body = "cat >/dev/null; echo 'rate limit, try again in 200 seconds' >&2; exit 75"
    config = settings(agent("a", script(tmp_path, "a", body)))
    async with engine_in(tmp_path, config) as engine:
        assert (await work(engine, backend="a", mode="interactive")).state == "refused"
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="batch"))
        assert (begun.state, begun.attempts) == ("waiting", ())
        part = await read(engine, begun)
        assert (part.attempt, part.log_path, part.text) == (None, None, "")
        assert (part.offset, part.next_offset, part.size_bytes) == (0, 0, 0)
        assert not part.ended
        with pytest.raises(Unknown):
            await engine.log(begun.delegation, attempt=1, offset=0, max_bytes=10)
        await engine.cancel(begun.delegation)
        part = await read(engine, begun)
        assert (part.attempt, part.ended) == (None, True)


async def test_the_answer_is_the_output_as_it_was_printed(tmp_path: Path) -> None:
    body = r"cat >/dev/null; printf '  \033[1mbold\033[0m\ttab\r\n\n\007x \r\n'"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        assert await engine.text(done) == "  \x1b[1mbold\x1b[0m\ttab\r\n\n\x07x "


async def test_output_without_a_visible_character_is_no_answer(tmp_path: Path) -> None:
    body = r"cat >/dev/null; printf '\033[0m\r\n'"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        assert {reason for _, reason in tried(done)} == {"empty_result"}


async def test_each_attempt_has_its_own_log(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; echo too many >&2; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        name = done.delegation
        for attempt, text in ((1, "too many\n"), (f"{name}.2", "answer of b\n"), (None, None)):
            part = await engine.log(name, attempt=attempt, offset=0, max_bytes=1000)
            assert part.text == (text or "answer of b\n")
            assert Path(part.log_path).read_bytes().decode() == part.text
        with pytest.raises(Unknown):
            await engine.log(name, attempt=3, offset=0, max_bytes=1000)


async def test_growing_output_is_told_to_subscribers(tmp_path: Path) -> None:
    body = """
        cat >/dev/null
        echo first
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        echo second
        """
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a", session="s"))
        (first,) = await ear.until(lambda heard: heard.shown("attempt.output"))
        assert (first.delegation, first.session, first.backend) == (begun.delegation, "s", "a")
        assert first.offset == len("first\n")
        (tmp_path / "go").touch()
        await ended(engine, begun)
        assert ear.shown("attempt.output")[-1].offset <= len("first\nsecond\n")


async def test_what_an_agent_writes_is_told_piece_by_piece_and_whole_at_the_end(
    tmp_path: Path,
) -> None:
    body = """
        cat >/dev/null
        printf 'first\\n\\n\\033[31mred\\033[0m\\b\\n'
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        printf last
        """
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a", session="s"))
        await ear.until(lambda heard: "red" in heard.text())
        assert ear.text() == "first\n\nred\n"
        (tmp_path / "go").touch()
        await ended(engine, begun)
        assert ear.text() == "first\n\nred\nlast"
        pieces = ear.shown("attempt.text")
        ends = [one.offset + len(one.text) for one in pieces]
        assert [one.offset for one in pieces] == [0, *ends[:-1]]
        assert [one.phase for one in ear.shown("attempt.phase")] == ["writing"]


async def test_subscribers_hear_every_event_once_and_in_order(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b), store="sqlite") as engine:
        ear, gone = Ear(engine), Ear(engine)
        gone.stop()
        before = engine.store.last_seq
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(lambda n=number: work(engine, backend="ab"[n % 2]))
        await ear.hears("delegation.ended", times=10)
        heard = [one.seq for one in ear.notes]
        assert heard == list(range(before + 1, engine.store.last_seq + 1))
        assert list(await engine.store.journal(after_seq=before)) == ear.notes
        assert gone.notes == []


async def test_one_delegation_is_told_from_its_start_to_its_end(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        ear = Ear(engine)
        done = await work(engine, backend="a")
        kinds = [one.note.kind for one in ear.notes if one.note.delegation == done.delegation]
        assert kinds[0] == "delegation.accepted"
        assert kinds[-1] == "delegation.ended"
        assert kinds.count("attempt.started") == kinds.count("attempt.ended") == 2
        assert kinds.count("delegation.hopped") == 1
        assert [one.note.backend for one in ear.heard("health.moved")] == ["a"]


async def test_an_attempt_that_runs_shows_what_it_does(tmp_path: Path) -> None:
    body = """
        cat >/dev/null
        echo '{"type":"item.started","item":{"id":"1","type":"command_execution","command":"ls"}}'
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        """
    config = settings(agent("a", script(tmp_path, "a", body), "--json", kind="codex"))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        ear = Ear(engine)
        await ear.until(lambda heard: heard.shown("attempt.output"))
        found = await engine.delegation(begun.delegation)
        assert found.phase == "command_execution"
        assert found.attempts[0].state == "running"
        assert found.attempts[0].pid is not None
        assert found.last_activity_at is not None
        (tmp_path / "go").touch()
        await ended(engine, begun)


async def test_logs_and_prompts_are_private(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, "a secret", backend="a")
        root = tmp_path / "runs" / done.delegation
        assert (root / "prompt").read_text() == "a secret"
        await until(lambda: (root / "1" / "output.log").exists())
        for path in (root, *root.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path


async def test_a_subscriber_with_a_bug_stops_no_work(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:

        def broken(told: object) -> None:
            raise RuntimeError("a bug of a subscriber")

        engine.subscribe(broken)
        ear = Ear(engine)
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert ear.heard("delegation.ended")


class _Concealing:
    """Secrets that are known, which notes where it is asked for them."""

    def __init__(self) -> None:
        self.asked_on: dict[str, threading.Thread] = {}

    def conceal(self, text: str) -> str:
        self.asked_on[text[-4:]] = threading.current_thread()
        return text

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def test_a_long_output_is_judged_off_the_event_loop(tmp_path: Path) -> None:
    """Other callers are answered meanwhile, however long reading it takes."""
    line = '{"level":"error","error":{"message":"tool failed"}}'
    body = (
        f"cat >/dev/null; for i in $(seq 1000); do echo '{line}'; done >&2; echo last >&2; exit 1"
    )
    known = _Concealing()
    config = settings(agent("a", script(tmp_path, "a", body)))
    async with engine_in(tmp_path, config, secret_values=known) as engine:
        assert (await work(engine, backend="a")).state != "succeeded"
        assert known.asked_on["last"] is not threading.main_thread()


async def test_an_attempt_that_has_ended_holds_nothing_of_its_answer(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
        async with engine_in(tmp_path, config) as engine:
            await work(engine, backend="a")
            await anyio.wait_all_tasks_blocked()
            assert [one for one in gc.get_objects() if isinstance(one, Reader)] == []
    finally:
        gc.enable()
