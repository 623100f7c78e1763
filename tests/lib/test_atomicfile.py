"""A file is replaced as a whole, or stays as it was."""

import os
import stat
import threading
from pathlib import Path

import pytest

from fallbackd.lib import atomicfile


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_content_and_mode_are_as_asked_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o666)
    atomicfile.write(str(path), "né\n")
    assert path.read_bytes() == "né\n".encode()
    assert mode(path) == 0o600
    atomicfile.write(str(path), b"\x00" * 3_000_000, mode=0o644)
    assert path.stat().st_size == 3_000_000
    assert mode(path) == 0o644
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = os.umask(0o777)
    try:
        atomicfile.write(str(path), "x", mode=0o640)
    finally:
        os.umask(before)
    assert mode(path) == 0o640


def test_a_failure_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomicfile.write(str(path), "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomicfile.write(str(tmp_path / "none" / "file"), "x")


def test_a_reader_sees_the_old_or_the_new_content_never_a_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = {b"a" * 200_000, b"b" * 300_000}
    atomicfile.write(str(path), b"a" * 200_000)
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(20):
            for content in contents:
                atomicfile.write(str(path), content)
    finally:
        done.set()
        reader.join()
    assert seen
    assert seen <= contents


def test_a_relative_path_is_taken_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    atomicfile.write("file", "x")
    assert (tmp_path / "file").read_text() == "x"


def test_drafts_of_a_writer_that_was_killed_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    ours = tmp_path / f".name.{'0a' * 8}.tmp"
    others = [tmp_path / f".other.{'0a' * 8}.tmp", tmp_path / ".name.tmp", tmp_path / "name"]
    for each in (ours, *others):
        each.touch()
    atomicfile.clear_drafts(str(tmp_path / "name"))
    assert not ours.exists()
    assert all(each.exists() for each in others)
    atomicfile.clear_drafts(str(tmp_path / "gone" / "name"))
