"""`config.check`: what is said of a file that is named."""

from pathlib import Path

import pytest

from fallbackd.app.configuration import Configuration
from fallbackd.app.places import find_places
from fallbackd.core.ids import BackendId
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


CIRCLE = """
[gateway]
enabled = true
[backends.mine]
kind = "openai-http"
model = "m"
base_url = "http://localhost:41411/v1"
[defaults]
nonsense = 1
"""


async def test_a_backend_that_would_ask_itself_is_an_error_of_the_check_and_no_end_of_the_daemon(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CIRCLE)
    own = Configuration(find_places({}, config=str(file)), SystemClock())
    for text in (None, CIRCLE):
        found = await own.check(path=None, text=text)
        assert [one.path for one in found.errors] == ["backends.mine.base_url"]
        assert [one.path for one in found.warnings] == ["defaults.nonsense"]
    state = own.state()
    assert state.errors == ()
    assert [one.path for one in state.warnings] == ["backends.mine.base_url", "defaults.nonsense"]
    assert own.settings.policy.backends[BackendId("mine")].lacks is not None
