"""The house keeps its own rules: pure parts stay pure, registries are complete."""

import ast
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

ROOT = Path(__file__).parent.parent
DAEMON = ROOT / "daemon" / "fallbackd"
CLIENT = ROOT / "client" / "fallbackd_client"
CONVERSATIONS = ROOT / "client" / "fallbackd_conversations"

CORE_MAY_IMPORT = {
    "collections", "datetime", "email", "enum", "fallbackd", "functools", "hashlib", "itertools",
    "fallbackd_conversations",
    "json", "math", "msgspec", "re", "re2", "types", "typing", "zoneinfo",
    "array", "pkgutil", "struct", "unicodedata", "zlib",
}  # fmt: skip
"""`datetime`, `email`, `zoneinfo`: reset times are calendar arithmetic on a given instant. `re2`:
the patterns of users, in linear time. `array`, `pkgutil`, `zlib`: the weights of the classifier,
a file of the package. `struct`: n-grams of bytes as numbers. `unicodedata`: letters without
accents."""
BACKENDS_MAY_IMPORT = CORE_MAY_IMPORT | {"codecs", "tomllib", "urllib"}
PURE = ("core", "classify", "backends")
CLOCKS = {"now", "today", "utcnow"}


def modules_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    "path",
    [*modules_under(DAEMON / "core"), *modules_under(DAEMON / "classify")],
    ids=lambda p: p.name,
)
def test_core_imports_only_what_is_pure(path: Path) -> None:
    assert imports_of(path) <= CORE_MAY_IMPORT


@pytest.mark.parametrize("path", modules_under(DAEMON / "backends"), ids=lambda p: p.name)
def test_backends_import_only_what_is_pure(path: Path) -> None:
    assert imports_of(path) <= BACKENDS_MAY_IMPORT


@pytest.mark.parametrize(
    "path",
    [path for name in PURE for path in modules_under(DAEMON / name)],
    ids=lambda p: p.name,
)
def test_nothing_pure_reads_a_clock_or_waits(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    clocks = [call.attr for call in calls if isinstance(call, ast.Attribute)]
    assert not CLOCKS & set(clocks)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]


def test_every_kind_of_backend_is_listed() -> None:
    from fallbackd.backends import KINDS

    with_kind = {
        path.stem
        for path in modules_under(DAEMON / "backends")
        if any(
            isinstance(node, ast.Assign | ast.AnnAssign) and "KIND" in names_of(node)
            for node in ast.parse(path.read_text()).body
        )
    }
    programs = [kind for kind in KINDS.values() if kind.endpoint is None]
    listed = {kind.start.__module__.rpartition(".")[2] for kind in programs}
    assert with_kind == listed, "add it to KINDS in backends/__init__.py"


def wrong_in(table: Mapping[type, Any], union: Any) -> list[str]:
    """What a table of functions by type lacks or has too much, and what takes another type."""
    found = [f"{kind.__name__} is absent" for kind in set(get_args(union)) - set(table)]
    found += [f"{kind.__name__} is too much" for kind in set(table) - set(get_args(union))]
    for kind, does in table.items():
        hints = [] if does is None else list(get_type_hints(does).values())
        taken = {one for hint in hints for one in (hint, *get_args(hint))}
        if does is not None and kind not in taken and union not in taken:
            found.append(f"{does.__name__} takes no {kind.__name__}")
    return found


def test_a_function_is_listed_for_each_type_and_takes_it() -> None:
    """`mypy` does not see that. A table costs less than `match`, which asks type after type."""
    from fallbackd.core.decide import ANSWERED, DECIDED
    from fallbackd.core.decision import Change, Effect, Note
    from fallbackd.core.decision_log import WORDS
    from fallbackd.core.events import Event
    from fallbackd.engine.loop import KEYS
    from fallbackd.stores.mirror import ADDED
    from fallbackd.stores.writes import WRITTEN

    assert not DECIDED.keys() & ANSWERED.keys()
    assert wrong_in({**DECIDED, **ANSWERED}, Event) == []
    assert wrong_in(WORDS, Change | Effect) == []
    assert wrong_in(KEYS, Event) == []
    assert wrong_in(ADDED, Change) == []
    assert wrong_in({**WRITTEN, Note: None}, Change) == []


def test_a_table_that_lacks_a_type_or_mistakes_one_is_found() -> None:
    def of_number(one: int) -> None: ...

    table = {int: of_number, str: of_number, bytes: None}
    assert sorted(wrong_in(table, int | str | float)) == [
        "bytes is too much", "float is absent", "of_number takes no str",
    ]  # fmt: skip


def names_of(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_every_method_of_the_wire_has_a_handler() -> None:
    from fallbackd.fronts.rpc.discover import HANDLERS
    from fallbackd_client.wire.methods import METHODS

    assert {one.name for one in METHODS} == {one.method.name for one in HANDLERS}


def test_the_methods_of_a_noun_are_served_by_one_module_of_the_api() -> None:
    """So a method costs two files: its noun in `wire/methods`, and a module of `api`."""
    from fallbackd.fronts.rpc.discover import HANDLERS
    from fallbackd_client.wire.methods import NOUNS

    noun_of = {one.name: noun.__name__.rpartition(".")[2] for noun in NOUNS for one in noun.METHODS}
    served_by: dict[str, set[str]] = {}
    for handler in HANDLERS:
        served_by.setdefault(noun_of[handler.method.name], set()).add(handler.handle.__module__)
    assert served_by.pop("rpc") == {"fallbackd.fronts.rpc.discover"}
    for noun, modules in served_by.items():
        assert len(modules) == 1, noun
        assert all(one.startswith("fallbackd.api.") for one in modules), noun


def test_every_noun_of_the_wire_is_listed() -> None:
    from fallbackd_client.wire.methods import NOUNS

    listed = {noun.__name__.rpartition(".")[2] for noun in NOUNS}
    there = {path.stem for path in modules_under(CLIENT / "wire" / "methods")}
    assert there == {"__init__", *listed}


def test_no_module_is_called_by_a_word_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "models"}
    named = {
        path.stem
        for path in [*modules_under(DAEMON), *modules_under(CLIENT), *modules_under(CONVERSATIONS)]
    }
    assert not named & empty


def test_no_source_file_outgrows_its_subject() -> None:
    """About 800 lines is the most that one subject takes."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*modules_under(DAEMON), *modules_under(CLIENT), *modules_under(CONVERSATIONS)]
        if (lines := len(path.read_text().splitlines())) > 850
    }
    assert not long


def test_the_runner_stands_alone() -> None:
    """It is started without site-packages: it may import the standard library and what does too."""
    alone = ("fallbackd.transports.process.runner", "fallbackd.lib.failpoints")
    folder = DAEMON / "transports" / "process" / "runner"
    for path in modules_under(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fallbackd"):
                assert (node.module or "").startswith(alone)
    packages = (DAEMON, DAEMON / "transports", DAEMON / "transports" / "process", DAEMON / "lib")
    for package in packages:
        assert not imports_of(package / "__init__.py")
    assert "fallbackd" not in imports_of(DAEMON / "lib" / "failpoints.py")


def test_every_target_that_make_is_asked_for_does_something() -> None:
    """`make` takes a name from `.PHONY` without a recipe for done."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    named = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    with_recipe = {
        line.partition(":")[0]
        for line, following in itertools.pairwise(lines)
        if following.startswith("\t")
    }
    # `setup` is there for what it depends on.
    assert set(named) - with_recipe == {"setup"}


def state_changes_in(tree: ast.AST) -> list[int]:
    """
    Lines that move a delegation to another state: `case.enter(…)`, or a state that is written into
    a delegation (`structs.replace(…, state=…)`, `Delegation(…, state=…)`, `update(state=…)`).
    """
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        sets_state = any(word.arg == "state" for word in node.keywords)
        is_other = called.endswith("replace") and node.args and is_other_record(node.args[0])
        writes = called.endswith(("replace", ".update", ".update_other", "Delegation"))
        if called.endswith(".enter") or (sets_state and writes and not is_other):
            found.append(node.lineno)
    return found


def is_other_record(node: ast.expr) -> bool:
    """The record that is replaced is, by its name, no delegation."""
    return ast.unparse(node) in {"running", "attempt", "outage", "plain"}


def test_only_one_function_moves_a_delegation_to_another_state() -> None:
    """`Case.enter` is called in one function, which asks the table first."""
    breaches = {
        str(path.relative_to(ROOT)): lines
        for package in ("core", "engine", "stores", "app")
        for path in modules_under(DAEMON / package)
        if path != DAEMON / "core" / "work" / "transitions.py"
        and (lines := state_changes_in(ast.parse(path.read_text())))
    }
    kept = breaches.pop("daemon/fallbackd/core/case.py")
    assert len(kept) == 1, "Case.enter itself"
    assert not breaches
    transitions = ast.parse((DAEMON / "core" / "work" / "transitions.py").read_text())
    [mover] = [
        node
        for node in ast.walk(transitions)
        if isinstance(node, ast.FunctionDef) and state_changes_in(node)
    ]
    assert mover.name == "enter"
    assert "TRANSITIONS[before]" in ast.unparse(mover)


@pytest.mark.parametrize(
    "planted",
    [
        "case.enter('failed')",
        "case.update(state='failed')",
        "case.update_other(name, state='failed')",
        "structs.replace(delegation, state='failed')",
        "structs.replace(case.delegation, message='', state='failed')",
        "Delegation(delegation=name, state='failed')",
    ],
)
def test_a_planted_change_of_state_is_caught(planted: str) -> None:
    assert state_changes_in(ast.parse(f"def f(case):\n    {planted}")) == [2]


@pytest.mark.parametrize("name", ["plan", "ask", "steps", "outages", "retries"])
def test_a_plan_sees_a_case_that_cannot_be_changed(name: str) -> None:
    """By type: mypy knows no way to change a `CaseView`."""
    tree = ast.parse((DAEMON / "core" / "work" / f"{name}.py").read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "CaseView" in names
    assert "Case" not in names


def test_the_drawings_of_the_pages_are_those_of_the_code() -> None:
    from tests.support.drawings import PAGES, drawn, redrawn

    for path, names in PAGES.items():
        page = path.read_text()
        assert all(drawn(name) in page for name in names), "python -m tests.support.drawings"
        assert redrawn(page) == page
