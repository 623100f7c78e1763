"""The words of the house: one word for one thing, and programs are not persons."""

import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from tests.docs.scene import ROOT

NOT_PERSONS = r"nobody|somebody|everybody|anybody|whoever|no one|someone|everyone|anyone"
PRIVATE = (
    r"mend(s|ed|ing)?|sign of life|earliest return|takes? up|taken up|taking up|"
    r"(?<!\.)told(?!\.\w)|tells? (what|whether|why|too)|persons|who would be used|those who may|"
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
    r"started anew|by its own date|no time at all|takes the conversation over as its own|"
    r"as its own past|have agents that you have open|it shares what failed|say what is to be done|"
    r"is no (tier|category|kind|socket|JSON|YAML|HTTP API|address of|number of|name (in|for|of))|"
    r"nobody to delegate to|the daemon's PATH is not yours|ends with the last login of",
    re.I,
)
"""Sentences that have better ones, wherever they stand: also in docstrings and comments."""
FORBIDDEN = re.compile(rf"\b({NOT_PERSONS}|{PRIVATE})\b".replace(" ", r"\s+"), re.I)
MARKDOWN = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
]
"""Pages besides those of `docs/`."""
NEWLINE = "\n"
TEXT = {
    tokenize.COMMENT,
    tokenize.STRING,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),  # Python 3.12 and later
}
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def pages() -> list[Path]:
    return [*MARKDOWN, *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").glob("*/README.md")]


def sources() -> Iterator[Path]:
    for folder in ("daemon", "client", "contrib"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"__pycache__", "weights"} & set(path.parts):
                yield path


def said(path: Path) -> Iterator[tuple[int, str]]:
    """Strings, docstrings and comments, not names. Those that follow each other are one text."""
    with path.open("rb") as file:
        tokens = [one for one in tokenize.tokenize(file.readline) if one.type not in LAYOUT]
    for kind, group in groupby(tokens, key=attrgetter("type")):
        if kind in TEXT:
            texts = list(group)
            yield texts[0].start[0], "\n".join(one.string.strip("'\"# ") for one in texts)


def found_in(texts: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{line + text.count(NEWLINE, 0, hit.start())}: {' '.join(hit[0].split())}"
        for line, text in texts
        for hit in FORBIDDEN.finditer(text)
    ]


def test_a_private_word_is_found() -> None:
    assert found_in(iter([(7, "so that nobody waits"), (8, "well done")])) == ["7: nobody"]


def test_a_private_word_is_found_in_docstrings_and_comments(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Wake\neverybody."""\n\nNOBODY = f"{1} is told"  # whoever asks; what\n# goes\n# on\n'
        'x = ("goes "\n     "on")\n'
    )
    assert found_in(said(module)) == [
        "2: everybody",
        "4: told",
        "4: whoever",
        "5: goes on",
        "7: goes on",
    ]


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
        str(path.relative_to(ROOT)): hits
        for path in sources()
        if FORBIDDEN.search(re.sub(r"[\s'\"#]+", " ", path.read_text()))  # most need no parsing
        and (hits := found_in(said(path)))
    }
    assert not found, "CONTRIBUTING.md says which words to use"
