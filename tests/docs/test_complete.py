"""Nothing is missing in the documentation: keys, commands, methods, reasons, verdicts, states."""

import re
import shlex
from typing import get_args

import pytest
import yaml
from contrib.docs import manual, reference
from tests.docs.scene import DOCS, ROOT, pages

from fallbackd.backends import KINDS
from fallbackd.config.schema import json_schema
from fallbackd.core.reasons import Reason
from fallbackd.core.records import DelegationState, VerdictWord
from fallbackd_client.cli.commands import COMMANDS, Command
from fallbackd_client.cli.parsing import command_parser
from fallbackd_client.wire.bounds import HealthState
from fallbackd_client.wire.methods import METHODS
from fallbackd_client.wire.methods.events import EventKind

MADE = reference.pages()
WORDS = (DOCS / "words.md").read_text()


def words_below(heading: str) -> set[str]:
    """The first cells of the table below a heading of the page of words."""
    section = WORDS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.M))


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("Reasons", {one.value for one in Reason}),
        ("Windows", {one.value for one in Reason}),
        ("Verdicts", set(get_args(VerdictWord))),
        ("States of a delegation", set(get_args(DelegationState))),
        ("States of a backend", set(get_args(HealthState))),
    ],
)
def test_every_word_is_explained(heading: str, words: set[str]) -> None:
    assert words_below(heading) == words


def test_every_command_is_in_the_reference_and_in_the_manual() -> None:
    page, man = MADE["reference/cli.md"], manual.pages()["fallbackd-client.1"]
    for one in COMMANDS:
        assert f"\n### {one.name}\n" in page
        assert f"usage: fallbackd-client {one.name} " in page
        assert f"\n.SS {one.name}\n" in man
    assert "usage: fallbackd [-h]" in page


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_the_example_of_a_command_is_one_that_it_takes(command: Command) -> None:
    name, *words = shlex.split(command.example)
    assert name in command.names
    command_parser(command).parse_args(words)


def test_every_method_error_and_event_is_in_the_reference() -> None:
    page = MADE["reference/rpc.md"]
    for one in METHODS:
        assert f"\n### {one.name}\n" in page
        assert f'"method": "{one.name}"' in page
    for kind in get_args(EventKind):
        assert f"`{kind}`" in page


def test_every_key_is_in_the_reference() -> None:
    page = MADE["reference/configuration.md"]
    for name, one in json_schema()["$defs"].items():
        for key in one.get("properties", {}):
            assert f"\n| `{key}` |" in page, f"{name}.{key}"


def test_every_kind_of_backend_has_a_page() -> None:
    overview = (DOCS / "backends" / "index.md").read_text()
    for kind in KINDS:
        assert f"`{kind}`" in overview
        [target] = {
            found[1]
            for found in re.finditer(r"\[([^\]]*)\]\((\w[\w-]*\.md)\)", overview)
            if f"`{kind}`" in found[1]
        }
        assert target


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]

    def leaves(node: object) -> set[str]:
        match node:
            case str():
                return {node}
            case list():
                return {leaf for one in node for leaf in leaves(one)}
            case dict():
                return {leaf for one in node.values() for leaf in leaves(one)}
        return set()

    assert leaves(nav) == {page for page, _ in pages()} | set(MADE)


@pytest.mark.parametrize("text", [*manual.pages().values()])
def test_a_man_page_has_the_usual_sections_and_no_unknown_request(text: str) -> None:
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"):
        assert f"\n.SH {section}" in text
    requests = set(re.findall(r"^([.'][^\s]*)", text, re.M))
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".BR", ".nf", ".fi", ".ad"}
