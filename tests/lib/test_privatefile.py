"""What an agent can put into a private directory costs an error and nothing more."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores.hardship import no_file_beyond

from fallbackd.lib import privatefile

PUT: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a directory": lambda path: path.mkdir(),
    "a socket": lambda path: _socket(path),
    "a file without end": lambda path: os.truncate(_file(path), 1 << 40),
}


def _file(path: Path) -> Path:
    path.touch()
    return path


def _socket(path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


@pytest.mark.parametrize("what", PUT)
def test_only_a_regular_file_of_some_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "d1" / "1"
    directory.mkdir(parents=True)
    PUT[what](directory / "record")
    with pytest.raises(OSError):
        privatefile.read_file(directory / "record", max_bytes=1000)
    assert privatefile.exists(directory / "record")


@pytest.mark.parametrize("level", ["d1", "d1/1"])
def test_no_link_is_followed_on_the_way(tmp_path: Path, level: str) -> None:
    (tmp_path / "d1" / "1").mkdir(parents=True)
    (tmp_path / "d1" / "1" / "record").write_text("x")
    path = tmp_path / "d1" / "1" / "record"
    assert privatefile.read_file(path, max_bytes=1) == b"x"
    (tmp_path / level).rename(tmp_path / "moved")
    (tmp_path / level).symlink_to(tmp_path / "moved")
    with pytest.raises(NotADirectoryError):
        privatefile.read_file(path, max_bytes=1)
    with pytest.raises(NotADirectoryError):
        privatefile.exists(path)


def test_what_lies_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "d1" / "1").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    (tmp_path / "disk" / "d1" / "prompt").write_text("p")
    (tmp_path / "disk" / "d1" / "1" / "record").write_text("r")
    assert privatefile.read_file(tmp_path / "runs" / "d1" / "1" / "record", max_bytes=1) == b"r"
    prompt = tmp_path / "runs" / "d1" / "prompt"
    assert privatefile.read_file(prompt, max_bytes=1, names=1) == b"p"


def test_a_missing_one_is_told_from_one_that_cannot_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        privatefile.read_file(tmp_path / "none" / "record", max_bytes=1)
    assert not privatefile.exists(tmp_path / "none" / "record")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        privatefile.exists(tmp_path / "file" / "record")


def test_a_line_that_the_disk_takes_in_part_is_not_written(tmp_path: Path) -> None:
    directory = privatefile.open_directory(tmp_path)
    try:
        privatefile.append_line("lines", b"first", directory=directory)
        with no_file_beyond(10), pytest.raises(OSError, match="too large"):
            privatefile.append_line("lines", b"longer than there is room", directory=directory)
        privatefile.append_line("lines", b"next", directory=directory)
    finally:
        os.close(directory)
    assert (tmp_path / "lines").read_bytes() == b"first\nnext\n"


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"first\nsec")
    directory = privatefile.open_directory(tmp_path)
    try:
        privatefile.append_line("lines", b"next", directory=directory)
    finally:
        os.close(directory)
    assert (tmp_path / "lines").read_bytes() == b"first\nsec\nnext\n"
