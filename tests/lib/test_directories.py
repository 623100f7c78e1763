"""Which directory it is, by whatever name it is called."""

from pathlib import Path

import pytest

from fallbackd.lib import directories
from fallbackd.lib.directories import identities, identity


def test_its_own_identity_comes_first_and_then_those_above_it(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    found = identities(str(inner))
    assert found[0] == identity(str(inner))
    assert {identity(str(one)) for one in inner.parents} <= set(found[1:])
    assert identity(str(inner)) not in identities(str(tmp_path))


def test_a_renamed_directory_is_the_same_one(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    own = identities(str(tmp_path / "before"))[0]
    (tmp_path / "before").rename(tmp_path / "after")
    (tmp_path / "before").mkdir()
    assert identities(str(tmp_path / "after"))[0] == own
    assert identities(str(tmp_path / "before"))[0] != own


def test_a_missing_one_has_none(tmp_path: Path) -> None:
    assert identities(str(tmp_path / "missing")) == ()


@pytest.mark.parametrize("name", ["plain", "with a space", "with\\backslash"])
def test_above_a_bind_mount_is_also_what_is_above_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel's list of mounts is a file of the test; a link shows what a mount would."""
    original = tmp_path / name / "tree"
    (original / "sub").mkdir(parents=True)
    (tmp_path / "at").mkdir()
    mounted = tmp_path / "at" / "point"
    mounted.symlink_to(original)
    root = str(original).replace("\\", "\\134").replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "22 21 0:5 / /proc rw - proc proc rw\n"
        f"23 21 8:1 {root} {mounted} rw shared:1 - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr(directories, "_MOUNTS", str(mounts))
    found = identities(str(mounted / "sub"))
    above = (original, tmp_path / name, tmp_path / "at", tmp_path)
    assert {identity(str(one)) for one in above} <= set(found)
    assert identity(str(mounted / "sub")) not in identities(str(tmp_path / name))


def test_another_mount_that_covers_it_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the place where the original was lies another directory by now."""
    (tmp_path / "original" / "covered").mkdir(parents=True)
    (tmp_path / "point").mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"23 21 8:1 {tmp_path}/original/covered {tmp_path}/point rw - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr(directories, "_MOUNTS", str(mounts))
    assert identity(str(tmp_path / "original")) not in identities(str(tmp_path / "point"))
