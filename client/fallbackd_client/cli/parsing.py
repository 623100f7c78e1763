"""The parsers of the command line: before the command, and of each command."""

from __future__ import annotations

import argparse
import os
import sys
import time

from fallbackd_client import __version__
from fallbackd_client.cli.commands import COMMANDS, GROUPS, Command, load
from fallbackd_client.cli.output import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_INSTANTS_S = 1e9
"""Since 2001 instants are larger than this; as a duration it is 31 years."""
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def duration_s(text: str) -> float:
    """
    Seconds of `90s`, `5m`, `1h30m`, `2d` or a bare number of seconds.

    Raises:
        argparse.ArgumentTypeError: It is neither.
    """
    number, total_s, has_unit = "", 0.0, False
    for sign in text.strip():
        if sign in _UNITS_S and number:
            total_s, number, has_unit = total_s + _seconds(number, text) * _UNITS_S[sign], "", True
        else:
            number += sign
    if has_unit and not number:
        return total_s
    if has_unit:
        raise _no_duration(text)
    return _seconds(number, text)


def limit_s(text: str) -> float:
    """
    Parse a duration that is not nothing.

    Raises:
        argparse.ArgumentTypeError: It is no duration, or 0.
    """
    if (found_s := duration_s(text)) > 0:
        return found_s
    more = "write 90s, 5m, 1h30m or more"
    raise argparse.ArgumentTypeError(f"{text!r} must be greater than zero: {more}")


def since_at(text: str) -> float:
    """
    The instant so long ago, in Unix seconds; a number that is far too long for that is one itself.

    Raises:
        argparse.ArgumentTypeError: It is neither.
    """
    found_s = duration_s(text)
    return found_s if found_s >= _INSTANTS_S else time.time() - found_s


def wait_for_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait-for",
        dest="wait_s",
        type=duration_s,
        metavar="DURATION",
        help="wait this long at most (90s, 5m, 1h30m); the work continues",
    )


def _seconds(number: str, text: str) -> float:
    try:
        found = float(number)
    except ValueError:
        raise _no_duration(text) from None
    if not 0.0 <= found < float("inf"):
        raise _no_duration(text)
    return found


def _no_duration(text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(
        f"{text!r} is not a duration: write 90s, 5m, 1h30m or a number of seconds"
    )


def add_actions(
    parser: argparse.ArgumentParser,
    help_lines: dict[str, str],
    *,
    default: str | None = None,
    required: bool = True,
) -> dict[str, argparse.ArgumentParser]:
    """
    Add actions; the flags of the program may follow an action too.

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


PROG = "fallbackd-client"
_EXIT_CODES = """\
exit codes:
  0  done, or accepted with --wait accepted
  1  the work failed or was cancelled
  2  usage
  69 the daemon is not running
  75 temporarily unavailable, handed back, waiting for an answer, still running
  77 not permitted, or a login or payment is needed
  78 configuration, a missing program or an unsupported version
  130 interrupted"""


_MISSING = "the following arguments are required: "
"""How argparse begins to say so."""
_UNRECOGNISED = "unrecognized arguments: "
_MOST_SAID = 1000
"""Characters of what was wrong: arguments may be long."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width from the start: the class it extends loads `shutil` to find it out."""

    def __init__(self, prog: str) -> None:
        try:
            width = os.get_terminal_size(1).columns or 80  # 0: not said
        except OSError:
            width = 100
        super().__init__(prog, width=max(40, min(width, 100)) - 2)


class _Parser(argparse.ArgumentParser):
    """
    Says which words are possible where one is missing, and repeats none that is unsafe.

    Raises:
        UsageError: Where argparse would end the process.
    """

    def error(self, message: str) -> NoReturn:
        from fallbackd_client.cli.output import safe  # rarely needed

        message = safe(message)
        if len(message) > _MOST_SAID:
            message = message[:_MOST_SAID] + " …"
        if message.startswith(_UNRECOGNISED):
            raise UsageError(_unknown_words(self, message.removeprefix(_UNRECOGNISED)))
        names = message.removeprefix(_MISSING)
        if names != message and (lines := _possible(self, names.split(", ")[0])):
            message = "\n".join([f"name one of these; `{self.prog} --help` says more", *lines])
        elif any(one.metavar == "DELEGATION" for one in self._get_positional_actions()):
            message += f" (DELEGATION is an id of `{PROG} list`, or @last)"
        self.print_usage(sys.stderr)
        raise UsageError(message)


def _unknown_words(parser: argparse.ArgumentParser, words: str) -> str:
    """Say which option was meant; for other words, that quotes make one argument of several."""
    from difflib import get_close_matches  # rarely needed, slow to load

    first = words.split()[0] if words.split() else words
    help_ = f"`{parser.prog} --help` lists the options"
    if not first.startswith("-"):
        return f"unexpected words: {words}; put an argument of several words into quotes ({help_})"
    name = first.partition("=")[0]
    known = list(parser._option_string_actions)
    near = get_close_matches(name, known, n=1)
    meant = _FLAGS_MEANT.get(name, "")
    if meant.partition(" ")[0] in known:
        near = [meant]
    return f"unknown option {name}; {f'did you mean {near[0]}?' if near else help_}"


_FLAGS_MEANT = {
    **dict.fromkeys(("--agent", "--provider", "--cli", "-a", "-b"), "--backend"),
    **dict.fromkeys(("--async", "--background", "--bg", "--detach", "-d"), "--wait accepted"),
    "--no-wait": "--wait accepted",
    "-m": "--model",
    **dict.fromkeys(("--dir", "--directory", "--workdir", "-C"), "--cwd"),
    **dict.fromkeys(("--resume", "--continue", "--conversation", "-c", "-r", "-s"), "--session"),
    **dict.fromkeys(("--time-limit", "--max-time"), "--deadline"),
    **dict.fromkeys(("--yolo", "--full-auto", "--sandbox"), "--permissions"),
    **dict.fromkeys(("--no-fallback", "--only", "--strict"), "--no-failover"),
}
"""Options that people try, and the one that does what they mean, where a command has it."""


def _possible(parser: argparse.ArgumentParser, missing: str) -> list[str]:
    for action in parser._get_positional_actions():
        if action.choices is None or missing not in (action.metavar, action.dest):
            continue
        about = {str(name): "" for name in action.choices}
        if isinstance(action, argparse._SubParsersAction):
            about |= {one.dest: one.help or "" for one in action._choices_actions}
        width = max(map(len, about))
        return [f"  {name.ljust(width)}  {words}".rstrip() for name, words in about.items()]
    return []


def program_parser() -> argparse.ArgumentParser:
    """Make the parser of what may stand before the command."""
    parser = _Parser(
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
    """Make the parser of what may follow the command."""
    parser = _Parser(
        prog=f"{PROG} {command.name}",
        description=command.help_line[0].upper() + command.help_line[1:] + ".",
        epilog=f"example:\n  {PROG} {command.example}",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _global_flags(parser)
    load(command, "register")(parser)
    return parser


def _global_flags(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS: a flag that stands before the command is not reset by the parser after it.
    parser.add_argument(
        "--socket", metavar="P", default=argparse.SUPPRESS, help="path of the daemon's socket"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print one JSON document",
    )


def _commands_help() -> str:
    width = max(len(", ".join(command.names)) for command in COMMANDS)
    lines = []
    for title, group in GROUPS:
        shown = ((", ".join(command.names), command.help_line) for command in group)
        lines += [f"{title}:", *(f"  {names.ljust(width)}  {about}" for names, about in shown), ""]
    return "\n".join(
        [
            *lines,
            f"Run `{PROG} help COMMAND` for its options and an example.",
            "",
            "environment:",
            "  FALLBACKD_SOCKET      path of the socket",
            "  FALLBACKD_DELEGATION  set inside attempts: work delegated there is nested",
            "  NO_COLOR              disables colours",
            "",
            _EXIT_CODES,
        ]
    )
