import os
import subprocess
from pathlib import Path

import pytest

from fallbackd.lib.privacy import Fault, command, fault_of, user_name

ME = os.geteuid()


def fault(path: Path, *, uid: int = ME, is_shared: bool = False) -> Fault | None:
    return fault_of(str(path), path.lstat(), uid=uid, is_shared=is_shared)


def test_what_only_its_owner_may_change_is_well(tmp_path: Path) -> None:
    for mode in (0o700, 0o755, 0o500):
        tmp_path.chmod(mode)
        assert fault(tmp_path) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_to_is_mended_by_the_command(
    mode: int, tmp_path: Path
) -> None:
    directory = tmp_path / "a b"
    directory.mkdir()
    directory.chmod(mode)
    found = fault(directory)
    assert found is not None
    assert f"mode {mode:04o}" in found.what
    assert found.fix == f"chmod 700 '{directory}'"
    subprocess.run(["sh", "-c", found.fix], check=True)
    assert fault(directory) is None


def test_a_file_keeps_no_right_to_be_executed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o666)
    found = fault(path)
    assert found is not None
    assert found.fix == f"chmod 600 {path}"


def test_what_belongs_to_somebody_else_names_him_and_the_new_owner(tmp_path: Path) -> None:
    found = fault(tmp_path, uid=ME + 1)
    assert found is not None
    assert found.what == f"{tmp_path} belongs to {user_name(ME)}"
    assert found.fix == f"sudo chown -R {user_name(ME + 1)} {tmp_path}"


def test_a_shared_directory_is_well_with_the_sticky_bit_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert fault(tmp_path, is_shared=True) is None
    assert fault(tmp_path) is not None
    tmp_path.chmod(0o777)
    found = fault(tmp_path, is_shared=True)
    assert found is not None
    assert found.fix == f"chmod go-w {tmp_path}"


def test_a_link_is_no_file_of_ours(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("elsewhere")
    found = fault(link)
    assert found is not None
    assert found.fix == f"rm {link}"


def test_users_without_a_name_are_numbers() -> None:
    assert user_name(4_000_000_000) == "4000000000"
    assert command("a", "b c") == "a 'b c'"
