"""`config.check`: what is said of a file that is named."""

from pathlib import Path

import pytest

from fallbackd.app.configuration import Configuration
from fallbackd.app.places import find_places
from fallbackd.lib.clock import SystemClock


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.toml", "does not exist"),
        ("file/below.toml", "does not exist"),
        ("a" * 300, "cannot be opened"),
        ("nul\0", "cannot be opened"),
        ("folder", "not a regular file"),
    ],
)
async def test_a_file_that_cannot_be_read_is_a_problem_of_its_path(
    tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    own = Configuration(find_places({}, config=str(tmp_path / "config.toml")), SystemClock())
    place = f"{tmp_path}/{name}"
    found = await own.check(path=place, text=None)
    assert found.path == place
    (problem,) = found.errors
    assert words in problem.message
