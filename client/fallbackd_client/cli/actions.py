"""The actions of a command (`gateway env`, `health mark`): a parser for each."""

from __future__ import annotations

import argparse


def add_actions(
    parser: argparse.ArgumentParser,
    help_lines: dict[str, str],
    *,
    default: str | None = None,
    required: bool = True,
) -> dict[str, argparse.ArgumentParser]:
    """
    Behind an action the flags of the program may stand too.

    Args:
        help_lines: By the name of the action.
        default: What is done where none is named.
        required: One has to be named, where there is no default.

    Returns:
        The parsers, by name. `args.action` is the one that was named.
    """
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="actions", required=required and default is None
    )
    parser.set_defaults(action=default)
    return {name: _added(actions, parser, name, line) for name, line in help_lines.items()}


def _added(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    parser: argparse.ArgumentParser,
    name: str,
    help_line: str,
) -> argparse.ArgumentParser:
    child = actions.add_parser(
        name,
        help=help_line,
        description=help_line[0].upper() + help_line[1:] + ".",
        allow_abbrev=False,
        formatter_class=parser.formatter_class,  # its own would load `shutil`
    )
    for flag, kind in (("--socket", "store"), ("--json", "store_true")):
        child.add_argument(flag, action=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return child
