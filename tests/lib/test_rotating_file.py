"""A private file that lines are added to."""

import stat
from pathlib import Path

import pytest

from fallbackd.lib.privatefile import RotatingFile


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_line_makes_the_file_and_its_directory_for_the_owner_alone(
    tmp_path: Path,
) -> None:
    """Case 001-282."""
    path = tmp_path / "logs" / "sessions.log"
    RotatingFile(str(path)).add("one")
    assert path.read_text() == "one\n"
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)


def test_trouble_is_told_once_and_again_after_it_was_over(tmp_path: Path) -> None:
    """With case 001-280."""
    told: list[str] = []
    blocked = tmp_path / "logs"
    blocked.write_text("a file where the directory should be")
    file = RotatingFile(str(blocked / "sessions.log"), on_trouble=told.append)
    file.add("one")
    file.add("two")
    assert len(told) == 1
    blocked.unlink()
    file.add("three")
    assert (blocked / "sessions.log").read_text() == "three\n"


def test_a_full_file_makes_room_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "sessions.log"
    file = RotatingFile(str(path), max_bytes=10, keep=2)
    for number in range(6):
        file.add(f"line-{number}")
    seen = sorted(one.name for one in tmp_path.iterdir())
    assert seen == ["sessions.log", "sessions.log.1", "sessions.log.2"]
    assert path.read_text() == "line-5\n"


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    told: list[str] = []
    target = tmp_path / "target"
    target.write_text("")
    path = tmp_path / "sessions.log"
    path.symlink_to(target)
    RotatingFile(str(path), on_trouble=told.append).add("one")
    assert target.read_text() == ""
    assert len(told) == 1


@pytest.mark.parametrize("link", ["directory", "file", "second name"])
def test_no_link_leads_it_to_another_file(tmp_path: Path, link: str) -> None:
    (tmp_path / "home").mkdir()
    own, log = tmp_path / "home" / ".bashrc", tmp_path / "logs" / ".bashrc"
    own.write_text("# mine\n")
    if link == "directory":
        log.parent.symlink_to(own.parent)
    else:
        log.parent.mkdir()
        log.symlink_to(own) if link == "file" else log.hardlink_to(own)
    told: list[str] = []
    RotatingFile(str(log), on_trouble=told.append).add("one")
    assert own.read_text() == "# mine\n"
    assert len(told) == 1
