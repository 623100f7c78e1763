"""The pictures of README and the site are what the demo prints."""

import re
from html import unescape

from contrib.docs.screen import COLUMNS, NO_BREAK, PICTURE, pictures, record
from tests.docs.scene import DOCS, ROOT, pages


def test_the_pictures_are_a_run_of_the_demo_and_fit_a_terminal() -> None:
    lines = record()
    for path, drawing in pictures(lines).items():
        assert drawing == path.read_text(), "run: python -m contrib.docs.screen"
    assert max(map(len, lines)) <= COLUMNS


def test_the_lines_that_readme_shows_are_lines_of_the_picture() -> None:
    shown = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0].splitlines()
    text = PICTURE.read_text().replace(NO_BREAK, " ")
    drawn = [unescape(one) for one in re.findall(r">([^<]+)</text>", text)]
    assert [one for one in shown if one not in drawn] == []


def test_each_picture_is_on_a_page() -> None:
    text = "".join(text for _, text in pages())
    assert [one.name for one in DOCS.glob("*.svg") if f"({one.name})" not in text] == []
