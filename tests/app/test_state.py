"""The state directory is private, and of one daemon."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores.hardship import no_file_beyond

from fallbackd.app.places import claim_state
from fallbackd.fronts.rpc.endpoint import EndpointTaken, EndpointUnusable


def test_it_is_made_private_and_locked_once(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "state"
    held = claim_state(str(directory), str(directory / "lock"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(EndpointTaken, match=f"process {os.getpid()}"):
        claim_state(str(directory), str(directory / "lock"))
    (directory / "lock").unlink()
    with pytest.raises(EndpointTaken, match="already runs"):
        claim_state(str(directory), str(directory / "lock"))
    for one in held:
        os.close(one)
    for one in claim_state(str(directory), str(directory / "lock")):
        os.close(one)


def test_an_open_directory_is_closed_where_it_is_ours(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "lock").touch()
    for one in claim_state(str(directory), str(directory / "lock")):
        os.close(one)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_an_open_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "other").touch()
    with pytest.raises(EndpointUnusable, match="chmod 700"):
        claim_state(str(directory), str(directory / "lock"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(EndpointUnusable, match="--state-dir"):
        claim_state(str(tmp_path / "state"), str(tmp_path / "state" / "lock"))


def test_on_a_full_disk_it_is_locked_without_the_number_of_its_owner(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with no_file_beyond(0):
        held = claim_state(str(directory), str(directory / "lock"))
    with pytest.raises(EndpointTaken, match="another process"):
        claim_state(str(directory), str(directory / "lock"))
    for one in held:
        os.close(one)


def locking(*, refused: frozenset[bool], error: int) -> Callable[[int, int], None]:
    """`flock` of a file system that locks no directories (True), or no files (False)."""
    flock = fcntl.flock

    def lock(held: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(held).st_mode) in refused:
            raise OSError(error, os.strerror(error))
        flock(held, how)

    return lock


def test_where_no_directory_can_be_locked_the_file_in_it_keeps_two_daemons_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_nfs = locking(refused=frozenset({True}), error=errno.EBADF)
    monkeypatch.setattr(fcntl, "flock", of_nfs)
    directory = tmp_path / "state"
    (held,) = claim_state(str(directory), str(directory / "lock"))
    with pytest.raises(EndpointTaken, match=f"process {os.getpid()}"):
        claim_state(str(directory), str(directory / "lock"))
    os.close(held)


def test_where_nothing_can_be_locked_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = locking(refused=frozenset({True, False}), error=errno.ENOLCK)
    monkeypatch.setattr(fcntl, "flock", without)
    directory = tmp_path / "state"
    with pytest.raises(EndpointUnusable, match=r"has no locks .* --state-dir"):
        claim_state(str(directory), str(directory / "lock"))
