"""The words of the house: one word for one thing, and programs are not persons."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.docs.scene import ROOT

NOT_PERSONS = r"nobody|somebody|everybody|whoever"
PRIVATE = (
    r"mend(s|ed|ing)?|sign of life|earliest return|takes? up|taken up|taking up|"
    r"(is|are|be) told|tells? (what|whether|why|too)|persons|who would be used|those who may|"
    r"goes on|went to|have a prompt answered|is to be seen|no service of yours|"
    r"choices that only|a person's word"
)
SENTENCES = re.compile(
    r"moves the work to the next|marks nobody|what is left to a person|choices? that only a person|"
    r"keeps the last good one|no new work, let running|what became of a call|"
    r"is too broad for an agent|"
    r"the time that the caller gave|of a family that must not|who would judge his own|"
    r"delegation its one answer, |what a resolution comes to|stopped and \*?proven\*? gone|"
    r"how much patience is shown|well: configuration|no web server|a word about why|"
    r"nobody to delegate to|the daemon's PATH is not yours|ends with the last login of",
    re.I,
)
"""Sentences that have better ones, wherever they stand: also in docstrings and comments."""
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
    """
    What people read of a module: its strings. Of the client, whose docstrings are the manual of its
    users, and of the tables of the configuration also docstrings and comments.
    """
    source = path.read_text()
    tree = ast.parse(source)
    is_manual = "client" in path.relative_to(ROOT).parts or path.name == "schema.py"
    inner = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if is_manual or id(node) not in inner:
            yield node.lineno, node.value
    if is_manual:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string


def found_in(texts: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{line}: {hit[0]}" for line, text in texts if (hit := FORBIDDEN.search(text))]


def test_a_private_word_is_found() -> None:
    assert found_in(iter([(7, "so that nobody waits"), (8, "well done")])) == ["7: nobody"]


def test_the_pages_use_the_words_of_the_house() -> None:
    found = {
        str(path.relative_to(ROOT)): hits
        for path in pages()
        if (hits := found_in(iter(enumerate(path.read_text().splitlines(), 1))))
    }
    assert not found


def test_no_sentence_that_has_a_better_one_is_left_anywhere() -> None:
    texts = {path: " ".join(path.read_text().split()) for path in (*pages(), *sources())}
    found = {
        str(path.relative_to(ROOT)): hit[0]
        for path, text in texts.items()
        if (hit := SENTENCES.search(text))
    }
    assert not found


def test_the_modules_use_the_words_of_the_house() -> None:
    found = {
        str(path.relative_to(ROOT)): hits for path in sources() if (hits := found_in(said(path)))
    }
    assert not found, "CONTRIBUTING.md says which words to use"
