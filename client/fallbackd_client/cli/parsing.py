"""The parsers of the command line: before the command, and of each command."""

from __future__ import annotations

import argparse
import os

from fallbackd_client import __version__
from fallbackd_client.cli.commands import COMMANDS, Command, load

PROG = "fallbackd-client"
_EXIT_CODES = """\
exit codes:
  0  done, or accepted and still running where asked so
  1  the work failed or was cancelled
  2  usage
  69 no daemon there
  75 temporarily unavailable, handed back, a question is open, or the wait is over
  77 not permitted, or a login or payment is needed
  78 configuration, a missing program or an unsupported version
  130 interrupted"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width from the start: the class it extends loads `shutil` to find it out."""

    def __init__(self, prog: str) -> None:
        try:
            width = os.get_terminal_size(1).columns or 80  # 0: not said
        except OSError:
            width = 100
        super().__init__(prog, width=max(40, min(width, 100)) - 2)


def program_parser() -> argparse.ArgumentParser:
    """What may stand before the command."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} [--socket P] [--json] COMMAND …",
        description="Delegate prompts to agent CLIs and HTTP APIs through fallbackd.",
        epilog=_commands_help(),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _global_flags(parser)
    parser.add_argument(
        "--version",
        action="version",
        version=f"{PROG} {__version__}",
        help="show the version and exit",
    )
    return parser


def command_parser(command: Command) -> argparse.ArgumentParser:
    """What may stand behind it."""
    parser = argparse.ArgumentParser(
        prog=f"{PROG} {command.name}",
        description=command.help_line[0].upper() + command.help_line[1:] + ".",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _global_flags(parser)
    load(command.name).register(parser)
    return parser


def _global_flags(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS: a flag that stands before the command is not reset by the parser after it.
    parser.add_argument(
        "--socket", metavar="P", default=argparse.SUPPRESS, help="path of the daemon's socket"
    )
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document"
    )


def _commands_help() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name.ljust(width)}  {command.help_line}" for command in COMMANDS]
    return "\n".join(
        [
            "commands:",
            *lines,
            "",
            f"`{PROG} COMMAND --help` says more about each.",
            "",
            "environment:",
            "  FALLBACKD_SOCKET      path of the socket",
            "  FALLBACKD_DELEGATION  set inside attempts: what is delegated from there is nested",
            "  NO_COLOR              no colours on a terminal either",
            "",
            _EXIT_CODES,
        ]
    )
