"""Directories that a program has of its own, with what is in those of its user."""

from pathlib import Path
from typing import Any

import pytest
from tests.transports.programs import collect, private_directory, shell, start, text_of, transport

from fallbackd.core.protocol import OwnCopy
from fallbackd.transports.process.runner import start as runner_start

CACHE = OwnCopy(variable="XDG_CACHE_HOME", place="~/.cache", shared=("~/.cache/build/",))


def of(home: Path, top: Path, **changes: Any) -> dict[str, Any]:
    given = {"top": str(top), "below": "", "real": str(home / ".cache"), "shared": [], "fresh": []}
    return {**given, "hidden": [], **changes}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    cache = tmp_path / "home" / ".cache"
    for name in ("hooks/env", "build"):
        (cache / name).mkdir(parents=True)
    (cache / "hooks" / "env" / "run").write_text("theirs")
    (cache / "hooks" / "list").write_text("theirs")
    (cache / "build" / "part").write_text("theirs")
    (cache / "key").write_text("secret")
    return tmp_path / "home"


async def test_a_program_finds_what_its_user_has_and_adds_to_its_own(
    home: Path, tmp_path: Path
) -> None:
    script = """
    cd "$XDG_CACHE_HOME" && cat hooks/env/run hooks/list build/part
    echo mine > hooks/list; echo mine > new; mkdir hooks/more; echo mine > build/part
    """
    async with transport(environ={"HOME": str(home), "PATH": "/usr/bin:/bin"}) as by:
        directory = private_directory(tmp_path)
        running = await start(by, shell(script), directory, own_tmp=True, copies=(CACHE,))
        assert text_of(await collect(running)) == b"theirs" * 3
    cache = home / ".cache"
    assert (cache / "hooks" / "list").read_text() == "theirs"
    assert sorted(each.name for each in cache.iterdir()) == ["build", "hooks", "key"]
    assert not (cache / "hooks" / "more").exists()
    assert (cache / "build" / "part").read_text() == "mine\n"
    assert not (Path(directory) / "tmp").exists()


def test_places_begin_anew_or_are_left_out(home: Path, tmp_path: Path) -> None:
    cache = home / ".cache"
    fresh, hidden = [str(cache / "build")], [str(cache / "key")]
    runner_start.make_copies([of(home, tmp_path / "own", below="x", fresh=fresh, hidden=hidden)])
    own = tmp_path / "own" / "x"
    assert sorted(each.name for each in own.iterdir()) == ["build", "hooks"]
    assert list((own / "build").iterdir()) == []


def test_what_is_large_or_crowded_or_no_plain_file_is_a_link(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_start, "MAX_COPY_BYTES", 3)
    monkeypatch.setattr(runner_start, "MAX_ENTRIES", 1)
    (home / ".cache" / "link").symlink_to(home / ".cache" / "key")
    runner_start.make_copies([of(home, tmp_path / "own")])
    found = {each.name: each.is_symlink() for each in (tmp_path / "own").iterdir()}
    assert found == {"hooks": True, "build": False, "key": True, "link": True}


def test_in_a_new_home_the_own_one_is_empty(tmp_path: Path) -> None:
    runner_start.make_copies([of(tmp_path / "nowhere", tmp_path / "own")])
    assert list((tmp_path / "own").iterdir()) == []
