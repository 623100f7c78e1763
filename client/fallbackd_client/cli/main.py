"""
`fallbackd-client`: global flags, the choice of a command, and exit codes.

Standard library only, and only the module of the chosen command: `status` has to be quick.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import os
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.commands import COMMANDS, MEANT, Command, load
from fallbackd_client.cli.output import UsageError, emit_json, note
from fallbackd_client.cli.parsing import PROG, command_parser, program_parser
from fallbackd_client.client import Client
from fallbackd_client.errors import (
    ClientError,
    NoDaemon,
    NotSendable,
    ProtocolError,
    RequestTooLarge,
    RpcError,
)
from fallbackd_client.paths import settle_home
from fallbackd_client.wire.codes import REFUSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECT_S = 0.3
"""A person waits: a socket that refuses is reported soon."""
_RECONNECT_S = 2.0
_RECONNECT_LONG_S = 60.0
"""For what may last: the daemon is restarted under it, with all that it has to read again."""


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    _open_streams()
    settle_home()
    try:
        code = _run(argv)
        sys.stdout.flush()  # what fails here would be a traceback of the interpreter
        return code
    except BrokenPipeError:
        _leave_stdout()  # the reader has gone
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOENT:
            note(f"{PROG}: the current directory is gone: change to one that exists")
            return exits.USAGE
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _leave_stdout()
        note(f"{PROG}: cannot write the output: {error.strerror}")
    return exits.FAILED


def _open_streams() -> None:
    """A stream that the caller has closed is one that nothing reads."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _leave_stdout() -> None:
    """The interpreter must not fail again when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_PLAIN = {"…": ".", "·": "-", "–": "-", "→": ">"}
"""For a terminal that lacks them; of the same width, so that columns stay in line."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    shown = (_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return "".join(shown), error.end


def _bear_any_character() -> None:
    codecs.register_error("plain", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not where a test or a caller has replaced it
            stream.reconfigure(errors="plain")


def _complete_id(args: argparse.Namespace, client: Client) -> None:
    if getattr(args, "delegation", None):
        from fallbackd_client.cli.ids import whole_id

        args.delegation = whole_id(client, args.delegation)


def _run(argv: Sequence[str] | None) -> int:
    _bear_any_character()
    argv = list(sys.argv[1:] if argv is None else argv)
    wants_json = "--json" in argv  # until they are understood
    try:
        args, command = _parse(argv)
        if command is None:
            return exits.OK
        wants_json = args.json
        reconnect_s = _RECONNECT_LONG_S if command.waits else _RECONNECT_S
        with Client(
            args.socket, connect_s=_CONNECT_S, reconnect_s=reconnect_s, on_loss=_tell_loss
        ) as client:
            _complete_id(args, client)
            return load(command, "run")(args, client)
    except SystemExit as leaving:  # argparse: help
        return leaving.code if isinstance(leaving.code, int) else exits.USAGE
    except KeyboardInterrupt:
        note("\ninterrupted" if sys.stderr.isatty() else "interrupted")  # behind the ^C
        return exits.INTERRUPTED
    except UsageError as error:
        if wants_json:
            emit_json({"error": {"message": str(error), "kind": "usage"}})
        note(f"{PROG}: {error}")
        return exits.USAGE
    except ClientError as error:
        return _failed(error, wants_json=wants_json)
    except (AttributeError, KeyError, TypeError) as error:
        return _failed(_not_understood(error), wants_json=wants_json)


def _not_understood(error: Exception) -> ClientError:
    """A daemon of another version, or another program at its socket; else a mistake of ours."""
    from traceback import extract_tb

    at = extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(at.filename)}:{at.lineno}"
    return ProtocolError(
        f"the answer was not understood ({type(error).__name__}: {error}; {place}). Is it a daemon"
        f" of this version? `{PROG} --version`, `fallbackd --version`"
    )


def _tell_loss(limit_s: float) -> None:
    note(f"lost the daemon; waiting up to {limit_s:.0f} s for it to return")


def _failed(error: ClientError, *, wants_json: bool) -> int:
    match error:
        case RpcError():
            code = exits.of_error(error.code)
            if error.code == REFUSED and isinstance(error.data, dict):
                from fallbackd_client.cli.views import exit_code

                code = exit_code(error.data)
            shown = {"code": error.code, "kind": error.kind, "data": error.data}
        case NoDaemon():
            code = exits.NO_DAEMON
            if error.cause == "not_permitted":
                code = exits.NOT_PERMITTED
            shown = {"kind": error.cause, "data": {"socket": error.path}}
        case RequestTooLarge():
            code = exits.USAGE
            shown = {"kind": "too_large"}
        case NotSendable():
            code = exits.USAGE
            shown = {"kind": "invalid_params"}
        case _:
            code = exits.FAILED
            shown = {"kind": "protocol"}
    if wants_json:
        emit_json({"error": {"message": str(error), **shown}})
    note(f"{PROG}: {error}")
    if isinstance(error, RpcError) and isinstance(error.data, dict):
        _details(error.data)
    return code


def _details(data: dict[str, object]) -> None:
    """Show the details of an error for people: problems of a configuration, verdicts."""
    problems = data.get("errors")
    for problem in problems if isinstance(problems, list) else []:
        if isinstance(problem, dict):
            note(f"  {problem.get('path') or 'file'}: {problem.get('message')}")
    if isinstance(data.get("candidates"), list):
        from fallbackd_client.cli.views import refusal

        print(refusal(data, sys.stderr), file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> tuple[argparse.Namespace, Command | None]:
    """Global flags stand before or after the command; the command's own after it."""
    before = program_parser()
    place = _command_place(argv)
    if place is None:
        before.parse_args(argv)
        before.print_help()
        raise SystemExit(exits.USAGE)
    args = before.parse_args(argv[:place])
    if argv[place] == "help":
        argv = [*argv[:place], *argv[place + 1 :], "--help"]
        if argv[place] == "--help":
            before.parse_args(["--help"])
    by_name = {name: command for command in COMMANDS for name in command.names}
    command = by_name.get(argv[place])
    if command is None:
        before.error(_unknown(argv[place], list(by_name)))
    args = command_parser(command).parse_args(argv[place + 1 :], args)
    args.socket = getattr(args, "socket", None)
    args.json = getattr(args, "json", False)
    return args, command


def _unknown(word: str, known: list[str]) -> str:
    import shlex  # rarely needed, as the next one, which is slow to load
    from difflib import get_close_matches

    if word.lower() in MEANT:
        return f"unknown command {word!r}; try: {PROG} {MEANT[word.lower()]}"
    if " " in word.strip():
        return f"that is no command; a prompt is run with: {PROG} delegate {shlex.quote(word)}"
    near = get_close_matches(word, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"`{PROG} --help` lists the commands"
    return f"unknown command {word!r}; {hint}"


def _command_place(argv: list[str]) -> int | None:
    """Index of the first word that is neither a flag nor the value of `--socket`."""
    place = 0
    while place < len(argv):
        if argv[place] == "--socket":
            place += 2
        elif argv[place].startswith("-"):
            place += 1
        else:
            return place
    return None


if __name__ == "__main__":
    sys.exit(main())
