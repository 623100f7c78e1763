"""The words of the house: one word for one thing, and programs are not persons."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.scene import ROOT

NOT_PERSONS = r"nobody|somebody|everybody|whoever"
PRIVATE = (
    r"mend(s|ed|ing)?|sign of life|earliest return|takes? up|taken up|taking up|"
    r"(is|are|be) told|tells? (what|whether|why|too)|persons|who would be used|those who may|"
    r"goes on|went to|have a prompt answered|is to be seen|well:|no service of yours|"
    r"choices that only|a person's word"
)
FORBIDDEN = re.compile(rf"\b({NOT_PERSONS}|{PRIVATE})\b", re.I)
MARKDOWN = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
]
"""Pages besides those of `docs/`."""


def pages() -> list[Path]:
    return [*MARKDOWN, *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").glob("*/README.md")]


def sources() -> Iterator[Path]:
    for folder in ("daemon", "client", "contrib"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"__pycache__", "weights"} & set(path.parts):
                yield path


def said(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module: strings, docstrings and comments, with their lines."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def found_in(texts: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{line}: {hit[0]}" for line, text in texts if (hit := FORBIDDEN.search(text))]


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_house(path: Path) -> None:
    assert not found_in(iter(enumerate(path.read_text().splitlines(), 1)))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_uses_the_words_of_the_house(path: Path) -> None:
    assert not found_in(said(path))
