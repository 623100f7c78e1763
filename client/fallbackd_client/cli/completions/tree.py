"""
What may stand on a command line, as a tree: read from the parsers, written out for each shell.

    Node ──▶ Node by name (commands, actions of a command)
     ├──▶ Option: flags, and what its value may be
     └──▶ Positional: what the word at a place may be
"""

from __future__ import annotations

import argparse

from fallbackd_client.cli.commands import COMMANDS
from fallbackd_client.cli.parsing import PROG, command_parser, program_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

BACKENDS = "backends"
DELEGATIONS = "delegations"
METHODS = "methods"
QUESTIONS = "questions"
SESSIONS = "sessions"
DYNAMIC = (BACKENDS, DELEGATIONS, METHODS, QUESTIONS, SESSIONS)
"""Kinds of words that only a daemon knows."""
FILES = "files"
DIRECTORIES = "directories"

_KIND_BY_METAVAR = {
    "BACKEND": BACKENDS,
    "DELEGATION": DELEGATIONS,
    "FILE": FILES,
    "METHOD": METHODS,
    "QUESTION": QUESTIONS,
    "SESSION": SESSIONS,
    "TARGET": BACKENDS,
}
_KIND_BY_FLAG = {
    "--backend": BACKENDS,
    "--chain": BACKENDS,
    "--cwd": DIRECTORIES,
    "--differs-from": BACKENDS,
    "--root": DIRECTORIES,
    "--session": SESSIONS,
    "--socket": FILES,
}


class Value:
    """
    Args:
        name: As the help calls it.
        words: All that it may be; empty: anything.
        kind: One of the kinds above; empty: none.
    """

    __slots__ = ("kind", "name", "words")

    def __init__(self, name: str, words: tuple[str, ...], kind: str) -> None:
        self.name = name
        self.words = words
        self.kind = kind


class Option:
    """
    Args:
        value: None: it takes none.
        is_hidden: Understood, and not offered.
    """

    __slots__ = ("flags", "help", "is_hidden", "is_repeatable", "value")

    def __init__(
        self,
        flags: tuple[str, ...],
        help_line: str,
        value: Value | None,
        *,
        is_repeatable: bool,
        is_hidden: bool,
    ) -> None:
        self.flags = flags
        self.help = help_line
        self.value = value
        self.is_repeatable = is_repeatable
        self.is_hidden = is_hidden


class Positional:
    __slots__ = ("is_optional", "value")

    def __init__(self, value: Value, *, is_optional: bool) -> None:
        self.value = value
        self.is_optional = is_optional


class Node:
    """
    Attributes:
        path: The words that lead here, without the program: `("health", "mark")`.
    """

    __slots__ = ("children", "help", "options", "path", "positionals")

    def __init__(self, path: tuple[str, ...], help_line: str) -> None:
        self.path = path
        self.help = help_line
        self.options: list[Option] = []
        self.positionals: list[Positional] = []
        self.children: dict[str, Node] = {}

    @property
    def shown(self) -> list[Option]:
        return [option for option in self.options if not option.is_hidden]

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children.values():
            yield from child.walk()


def whole_tree() -> Node:
    root = read_parser(program_parser(), (), PROG)
    for command in COMMANDS:
        root.children[command.name] = read_parser(
            command_parser(command), (command.name,), command.help_line
        )
    return root


def read_parser(parser: argparse.ArgumentParser, path: tuple[str, ...], help_line: str) -> Node:
    node = Node(path, help_line)
    for action in parser._actions:  # argparse has no public way to ask for them
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, child in action.choices.items():
                node.children[name] = read_parser(child, (*path, name), helps.get(name, ""))
        elif action.option_strings:
            node.options.append(_option(action))
        else:
            value = _value(action)
            node.positionals.append(Positional(value, is_optional=action.nargs == "?"))
    return node


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    return Option(
        tuple(action.option_strings),
        "" if action.help in (None, argparse.SUPPRESS) else str(action.help),
        _value(action) if takes_value else None,
        is_repeatable=isinstance(action, argparse._AppendAction),
        is_hidden=action.help == argparse.SUPPRESS,
    )


def _value(action: argparse.Action) -> Value:
    words = tuple(str(choice) for choice in action.choices or ())
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    kind = _KIND_BY_METAVAR.get(name, "")
    for flag in action.option_strings:
        kind = _KIND_BY_FLAG.get(flag, kind)
    return Value(name, words, "" if words else kind)
