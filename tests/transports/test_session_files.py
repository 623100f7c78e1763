"""Files that another program appends to: each line is seen once, and nothing that was there."""

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import anyio
from tests.support.daemon import HANG_S

from fallbackd.transports.session_files import HEAD_BYTES, MAX_NEW_BYTES, Followed, NewLines, follow

NOTHING: frozenset[str] = frozenset()


def lines(found: list[NewLines]) -> list[bytes]:
    return [line for one in found for line in one.lines]


def session(place: Path, day: str = "2026/11/23", name: str = "a.jsonl") -> Path:
    path = place / day / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_only_what_is_new_at_the_end_is_read(tmp_path: Path) -> None:
    path = session(tmp_path)
    path.write_bytes(b"old\n")
    followed = Followed((str(tmp_path),))
    assert followed.look(NOTHING) == []
    with path.open("ab") as file:
        file.write(b"one\ntwo\nhal")
    assert lines(followed.look(NOTHING)) == [b"one", b"two"]
    assert followed.look(NOTHING) == []
    with path.open("ab") as file:
        file.write(b"f\n")
    (news,) = followed.look(NOTHING)
    assert (news.lines, news.head) == ((b"half",), b"old\none\ntwo\nhalf\n")


def test_a_new_file_is_new_from_its_beginning(tmp_path: Path) -> None:
    followed = Followed((str(tmp_path),))
    assert followed.look(NOTHING) == []
    session(tmp_path).write_bytes(b"one\n")
    session(tmp_path, "2026/11/24").write_bytes(b"two\n")
    older = session(tmp_path)
    assert lines(followed.look(NOTHING)) == [b"two"]
    assert lines(followed.look(frozenset({str(older)}))) == [b"one"]


def test_of_much_that_is_new_the_end_is_read_in_whole_lines(tmp_path: Path) -> None:
    followed = Followed((str(tmp_path),))
    followed.look(NOTHING)
    session(tmp_path).write_bytes(b"head\n" + (b"x" * 99 + b"\n") * (MAX_NEW_BYTES // 50))
    (news,) = followed.look(NOTHING)
    assert set(news.lines) == {b"x" * 99}
    assert len(news.lines) * 100 <= MAX_NEW_BYTES
    assert len(news.head) == HEAD_BYTES


def test_what_is_no_plain_file_of_the_place_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "sessions"
    followed = Followed((str(place),))
    followed.look(NOTHING)
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(b"secret\n")
    link = session(place, name="link.jsonl")
    link.symlink_to(secret)
    os.mkfifo(session(place, name="pipe.jsonl"))
    assert followed.look(frozenset({str(link), str(secret), str(place / "gone.jsonl")})) == []


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = session(tmp_path)
    path.write_bytes(b"a longer line\n")
    followed = Followed((str(tmp_path),))
    followed.look(NOTHING)
    path.write_bytes(b"new\n")
    assert lines(followed.look(NOTHING)) == [b"new"]


async def test_lines_are_heard_of_in_a_directory_that_did_not_exist(tmp_path: Path) -> None:
    place = tmp_path / "sessions"

    async def first(found: AsyncIterator[list[NewLines]]) -> list[NewLines]:
        async for news in found:
            if news:
                return news
        raise AssertionError("it ended")

    with anyio.fail_after(HANG_S):
        async with aclosing(follow((str(place),))) as found:
            assert await anext(found) == []
            session(place).write_bytes(b"one\n")
            assert lines(await first(found)) == [b"one"]
            with session(place).open("ab") as file:
                file.write(b"two\n")
            assert lines(await first(found)) == [b"two"]
