"""The house is one that can be held in the head: no circles, no scraps, a map that is true."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    ROOT / "daemon" / "fallbackd",
    ROOT / "client" / "fallbackd_client",
    ROOT / "client" / "fallbackd_conversations",
)
MAP = ROOT / "ARCHITECTURE.md"
MAX_WORDS = 1_800
FRAGMENT = re.compile(
    r"(What|Who|Whom|Whose|Which|How|Where|When|Why|Of|By|In|At|Behind|So|Beside|Because|That|Those"
    r"|It|They|He|The same)\b(?!.*\?$)",
    re.DOTALL,
)
"""Beginnings that name nothing."""


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): path
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports from, wherever in it."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= {one for one in full if one in modules()} or {node.module}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
        found[name] = {one for one in found[name] if one in modules()} - {name}
    return found


def circles() -> list[list[str]]:
    """Groups of modules of which each reaches each other (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imports()[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in imports():
        if name not in index:
            visit(name)
    return found


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


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


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles() == []


@pytest.mark.parametrize("path", modules().values(), ids=modules().keys())
def test_a_docstring_begins_with_a_verb_or_the_thing_itself(path: Path) -> None:
    assert [text for text in docstrings(path) if FRAGMENT.match(text)] == []


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
