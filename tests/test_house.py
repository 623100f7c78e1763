"""The map of the house is short and true."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAP = ROOT / "ARCHITECTURE.md"
MAX_WORDS = 1_800


def places() -> Iterator[tuple[str, list[str]]]:
    """(a path, the names that it is said to have) of each row of *Where is*."""
    rows = MAP.read_text().partition("## Where is")[2]
    for row in re.findall(r"^\| .+\? \| (.+) \|$", rows, re.M):
        path, names = "", list[str]()
        for word in re.findall(r"`([^`]+)`", row):
            if "/" in word:
                if path:
                    yield path, names
                path, names = word, []
            else:
                names.append(word)
        yield path, names


def test_the_map_is_short() -> None:
    assert len(MAP.read_text().split()) <= MAX_WORDS


def test_every_place_of_the_map_exists_and_has_the_names_that_it_is_said_to_have() -> None:
    found = list(places())
    assert len({path for path, _ in found}) >= 25
    for path, names in found:
        bases = [ROOT / "daemon/fallbackd" / path, ROOT / "client" / path]
        files = [base.with_suffix(".py") for base in bases if base.with_suffix(".py").is_file()]
        folders = [base for base in bases if base.is_dir()]
        assert files or folders, path
        text = "".join(one.read_text() for one in files)
        missing = [
            name
            for name in names
            if not re.search(rf"\b(def|class) {name}\b|^{name}\b", text, re.M)
        ]
        assert missing == [], f"{path} lacks these"
