"""The picture of README is what the demo prints."""

import re
from html import unescape

from contrib.docs.screen import COLUMNS, PICTURE, draw, record
from tests.docs.scene import ROOT


def test_the_picture_is_a_run_of_the_demo_and_fits_a_terminal() -> None:
    lines = record()
    assert draw(lines) == PICTURE.read_text(), "run: python -m contrib.docs.screen"
    assert max(map(len, lines)) <= COLUMNS


def test_the_lines_that_readme_shows_are_lines_of_the_picture() -> None:
    shown = (ROOT / "README.md").read_text().split("```\n")[1].splitlines()
    drawn = [unescape(one) for one in re.findall(r">([^<]+)</text>", PICTURE.read_text())]
    assert [one for one in shown if one not in drawn] == []
