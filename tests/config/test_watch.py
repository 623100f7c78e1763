"""However the file is changed on disk, the change is noticed, and nothing breaks the watch."""

import functools
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from fallbackd.config.files import load_file, read_content, watch

ONLY_A_HANG_S = 60


class Changes:
    """What the watch has told, as the content that lay there at that moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = anyio.Event()
        self.seen: list[str | None] = []
        self._digest = load_file(str(path)).digest
        self.fail_next = False

    def read(self) -> str:
        """The digest of what was read last."""
        return self._digest

    async def __call__(self) -> None:
        found = read_content(str(self._path))
        self._digest = found.digest
        self.seen.append(found.text)
        self._told.set()
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("a bug in what is called")

    async def until(self, is_there: Callable[[], bool]) -> None:
        with anyio.fail_after(ONLY_A_HANG_S):
            while not is_there():
                self._told = anyio.Event()
                await self._told.wait()

    async def last(self, text: str | None) -> None:
        await self.until(lambda: bool(self.seen) and self.seen[-1] == text)


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Changes]:
    changes = Changes(path)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await watch(str(path), changes, seen=changes.read)

        group.start_soon(run)
        yield changes
        group.cancel_scope.cancel()


def replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


async def test_a_file_that_is_replaced_by_rename_again_and_again_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        for text in ("1", "2", "3"):
            replace(path, text)
            await changes.last(text)


async def test_edits_in_place_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        for text in ("1", "2"):
            path.write_text(text)
            await changes.last(text)


async def test_a_file_that_is_created_later_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    async with watching(path) as changes:
        path.write_text("1")
        await changes.last("1")


async def test_directories_that_are_created_later_are_followed_down(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "config.toml"
    async with watching(path) as changes:
        path.parent.mkdir(parents=True)
        path.write_text("1")
        await changes.last("1")
        replace(path, "2")
        await changes.last("2")


async def test_a_file_that_is_deleted_and_comes_back_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        path.unlink()
        await changes.last(None)
        path.write_text("1")
        await changes.last("1")


async def test_a_directory_that_is_deleted_and_comes_back_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "config.toml"
    path.parent.mkdir()
    path.write_text("0")
    async with watching(path) as changes:
        shutil.rmtree(path.parent)
        await changes.last(None)
        path.parent.mkdir()
        path.write_text("1")
        await changes.last("1")
        replace(path, "2")
        await changes.last("2")


async def test_a_directory_that_is_swapped_for_another_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "config.toml"
    path.parent.mkdir()
    path.write_text("0")
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "config.toml").write_text("1")
    async with watching(path) as changes:
        path.parent.rename(tmp_path / "old")
        (tmp_path / "next").rename(path.parent)
        await changes.last("1")
        path.write_text("2")
        await changes.last("2")


async def test_a_symlink_that_is_swapped_is_noticed_and_its_new_target_watched(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "real.toml").write_text(name)
    path = tmp_path / "etc" / "config.toml"
    path.parent.mkdir()
    path.symlink_to(tmp_path / "one" / "real.toml")
    async with watching(path) as changes:
        (tmp_path / "one" / "real.toml").write_text("edited at the target")
        await changes.last("edited at the target")
        swap = path.with_name("swap")
        swap.symlink_to("../two/real.toml")
        os.replace(swap, path)
        await changes.last("two")
        replace(tmp_path / "two" / "real.toml", "two again")
        await changes.last("two again")


async def test_a_directory_symlink_on_the_way_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(name)
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "config.toml"
    path.symlink_to("..data/config.toml")
    async with watching(path) as changes:
        swap = tmp_path / "swap"
        swap.symlink_to("v2")
        os.replace(swap, tmp_path / "..data")
        await changes.last("v2")


async def test_a_change_between_reading_and_watching_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    changes = Changes(path)
    path.write_text("1")
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await watch(str(path), changes, seen=changes.read)

        group.start_soon(run)
        await changes.last("1")
        group.cancel_scope.cancel()


async def test_other_files_and_touches_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        (tmp_path / "other.toml").write_text("x")
        os.utime(path)
        path.chmod(0o600)
        replace(path, "0")
        replace(path, "1")
        await changes.last("1")
        assert changes.seen == ["1"]


async def test_a_loop_of_symlinks_and_a_directory_in_its_place_break_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        path.unlink()
        path.symlink_to(path)
        await changes.last(None)
        path.unlink()
        path.mkdir()
        path.rmdir()
        path.write_text("1")
        await changes.last("1")


async def test_a_bug_in_what_is_called_does_not_end_the_watch(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        changes.fail_next = True
        path.write_text("1")
        await changes.last("1")
        path.write_text("2")
        await changes.last("2")


async def test_cancelling_ends_the_watching_thread(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("0")
    async with watching(path) as changes:
        path.write_text("1")
        await changes.last("1")
        assert _has_inotify()
        assert _has_watching_thread()
    with anyio.fail_after(ONLY_A_HANG_S):
        while _has_inotify() or _has_watching_thread():
            await anyio.lowlevel.checkpoint()


def _has_inotify() -> bool:
    return any(
        _read(functools.partial(os.readlink, f"/proc/self/fd/{fd}")) == "anon_inode:inotify"
        for fd in os.listdir("/proc/self/fd")
    )


def _has_watching_thread() -> bool:
    return any(
        _read((one / "comm").read_text).startswith("notify")
        for one in Path("/proc/self/task").iterdir()
    )


def _read(read: Callable[[], str]) -> str:
    """What is read, or nothing where it has just gone."""
    try:
        return read()
    except OSError:
        return ""
