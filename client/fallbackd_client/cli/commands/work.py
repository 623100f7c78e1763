"""`delegate`, `reply`, `retry`, `wait` and `cancel`: run a prompt, follow it, stop it."""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.commands.standby import standby_flags, standby_params
from fallbackd_client.cli.ending import begun, finish, see_through
from fallbackd_client.cli.output import UsageError, note, show
from fallbackd_client.cli.parsing import duration_s, limit_s, wait_for_flag
from fallbackd_client.errors import NoDaemon
from fallbackd_client.wire.framing import MAX_LINE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

FIRST_BYTE_S = 3.0
"""How long a pipe may be silent before the prompt is sent without it."""


def register_delegate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    prompt_argument(parser)
    add("--backend", metavar="B", help="backend to try first")
    add("--role", metavar="R", help="a configured role: its chain and its rules")
    add("--chain", metavar="C", help="name of a chain, or backends separated by commas")
    add(
        "--session",
        metavar="S",
        help="session id: continues the conversation held under it",
    )
    add(
        "--fresh",
        action="store_true",
        help="begin a new conversation: do not continue what was said in the session",
    )
    add("--cwd", metavar="D", help="working directory (default: the current one)")
    add("--model", metavar="M", help="model to use, if the backend offers several")
    add(
        "--mode",
        choices=["interactive", "batch"],
        help="interactive: fail over quickly; batch: wait longer",
    )
    add(
        "--wait",
        choices=["accepted", "settled", "finished"],
        default="finished",
        help="what to wait for (default: finished)",
    )
    wait_for_flag(parser)
    add("--wait-s", dest="wait_s", type=duration_s, help=argparse.SUPPRESS)
    add(
        "--settle",
        type=duration_s,
        metavar="DURATION",
        help="with --wait settled: time to wait for an early failure",
    )
    add("--deadline", type=limit_s, metavar="DURATION", help="stop the work after this time")
    add("--timeout", dest="deadline", type=limit_s, help=argparse.SUPPRESS)
    add(
        "--no-queue",
        action="store_true",
        help="fail at once if the session or directory is in use (default: wait for it)",
    )
    add(
        "--when-available",
        action="store_true",
        help="where no backend is available, wait until one is (see `standby`)",
    )
    standby_flags(parser)
    add("--no-failover", action="store_true", help="use the first candidate only")
    add("--request-id", metavar="I", help="idempotency key")
    add(
        "--on-partial",
        choices=["continue", "ask", "fail"],
        help="what to do if a failed attempt may have changed files",
    )
    add("--permissions", choices=["read", "workspace", "full"], help="what the agent may do")
    add(
        "--differs-from",
        action="append",
        metavar="F",
        help="require a different model family than this family or delegation",
    )
    add(
        "--env",
        action="append",
        metavar="K=V",
        help="pass a variable to the backend, if its allow_env names it",
    )
    add("--allow-metered", action="store_true", help="allow backends that are billed by use")
    add("--start", action="store_true", help="start fallbackd where it does not run")


def run_delegate(args: argparse.Namespace, client: Client) -> int:
    params = _delegate_params(args)
    finished = params["wait"] == "finished"
    if finished:  # accepted first, so that its id is known while it runs
        params["wait"] = "accepted"
        params.pop("wait_s", None)
    try:
        found = begun(client, "delegate", params)
    except NoDaemon as missing:
        if missing.cause not in ("missing", "refused"):
            raise
        if not _has_started(args, client):
            note("`fallbackd-client delegate --start PROMPT` starts it, and runs the prompt")
            raise
        found = begun(client, "delegate", params)
    if found is None:
        return exits.INTERRUPTED
    return see_through(args, client, found) if finished else finish(args, found, waited=False)


def _has_started(args: argparse.Namespace, client: Client) -> bool:
    """Start the daemon, where the person at the terminal or `--start` agrees."""
    if not args.start and not (sys.stdin.isatty() and sys.stderr.isatty() and not args.json):
        return False
    from fallbackd_client.cli.commands.service import start
    from fallbackd_client.cli.setup.changes import Asking

    asking = Asking(yes=args.start)
    return asking.agree("fallbackd is not running. Start it?") and start(args, client)


def _delegate_params(args: argparse.Namespace) -> dict[str, Json]:
    given: dict[str, Json] = {
        "prompt": prompt_of(args.prompt),
        "backend": args.backend,
        "role": args.role,
        "chain": _chain(args.chain),
        "session": args.session,
        "cwd": _cwd(args.cwd),
        "model": args.model,
        "mode": args.mode,
        "wait": args.wait,
        "wait_s": args.wait_s,
        "settle_s": args.settle,
        "timeout_s": args.deadline,
        "queue": False if args.no_queue else None,
        "when_available": args.when_available or None,
        **standby_params(args),
        "request_id": os.urandom(16).hex() if args.request_id is None else args.request_id,
        "failover": False if args.no_failover else None,
        "on_partial": args.on_partial,
        "permissions": args.permissions,
        "differs_from": args.differs_from,
        "env": _env(args.env),
        "fresh": args.fresh or None,
        "allow_metered": args.allow_metered or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def prompt_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        help="the prompt, followed by piped input; `-` reads all of it from standard input",
    )


def prompt_of(argument: str) -> str:
    """The prompt that an argument and standard input make together."""
    if argument == "-":
        return _not_empty(_standard_input())
    prompt = _not_empty(_in_utf8(argument))
    piped = _standard_input().strip() if _is_piped() else ""
    return f"{prompt}\n\n{piped}" if piped else prompt


def _is_piped() -> bool:
    """Return whether input was given beside a prompt. An idle open pipe holds nothing up."""
    given = _given()
    if given is None:
        return False
    if given == "file" or select.select([sys.stdin], [], [], FIRST_BYTE_S)[0]:
        return True
    note(
        f"no input came on standard input within {FIRST_BYTE_S:g} s; the prompt is sent without it"
        " (give a slow command's output in a file, or `</dev/null` where there is none)"
    )
    return False


def _given() -> str | None:
    """Name the kind of standard input, `file` or `pipe`; None: a terminal, a device, or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or replaced by a caller
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "pipe" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def _standard_input() -> str:
    raw = sys.stdin.buffer.read(MAX_LINE_BYTES + 1)
    if len(raw) > MAX_LINE_BYTES:
        raise UsageError(
            f"the prompt on standard input is longer than {MAX_LINE_BYTES // 2**20} MiB: put large"
            " input into a file in the working directory and name the file in the prompt"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on standard input is not UTF-8: {error}") from error


def _in_utf8(argument: str) -> str:
    """Read an argument as UTF-8: under an ASCII locale its other bytes come as surrogates."""
    if argument.isprintable() or not any("\ud800" <= one <= "\udfff" for one in argument):
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError as error:
        raise UsageError(f"the prompt is not UTF-8: {error}") from error


def _not_empty(prompt: str) -> str:
    if not prompt.strip():
        raise UsageError("the prompt is empty; say what to do, or `-` to read it")
    return prompt


def _chain(argument: str | None) -> Json:
    if argument is None or "," not in argument:
        return argument
    return [name.strip() for name in argument.split(",") if name.strip()]


def _cwd(argument: str | None) -> str:
    try:
        path = os.path.abspath(argument or os.getcwd())
    except FileNotFoundError as error:
        raise UsageError("the current directory is gone: name one with --cwd") from error
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the name of the working directory {os.fsencode(path)!r} is not UTF-8, and cannot be"
            " sent to the daemon: rename it, or name another one with --cwd"
        ) from error
    return path


def _env(arguments: list[str] | None) -> dict[str, str] | None:
    if not arguments:
        return None
    env = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name or not equals:
            raise UsageError(f"--env takes NAME=VALUE, not {argument!r}")
        env[name] = value
    return env


def register_reply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    prompt_argument(parser)
    wait_for_flag(parser)


def run_reply(args: argparse.Namespace, client: Client) -> int:
    params = {
        "delegation": args.delegation,
        "prompt": prompt_of(args.prompt),
        "request_id": os.urandom(16).hex(),
    }
    found = begun(client, "delegation.reply", params)
    return exits.INTERRUPTED if found is None else see_through(args, client, found)


def register_retry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    wait_for_flag(parser)


def run_retry(args: argparse.Namespace, client: Client) -> int:
    params = {"delegation": args.delegation, "request_id": os.urandom(16).hex()}
    found = begun(client, "delegation.retry", params)
    return exits.INTERRUPTED if found is None else see_through(args, client, found)


def register_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    wait_for_flag(parser)
    parser.add_argument("--timeout", dest="wait_s", type=duration_s, help=argparse.SUPPRESS)


def run_wait(args: argparse.Namespace, client: Client) -> int:
    return see_through(args, client, client.call("delegation.get", {"delegation": args.delegation}))


def register_cancel(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("delegation", metavar="DELEGATION", nargs="?", help=ids.HELP)
    one.add_argument("--request-id", metavar="ID", help="the idempotency key that began it")
    one.add_argument("--session", metavar="NAME", help="everything unfinished in this session")


def run_cancel(args: argparse.Namespace, client: Client) -> int:
    """Done also where it had ended before: what was asked for is so."""
    named = {name: getattr(args, name) for name in ("delegation", "request_id", "session")}
    found = client.call(
        "delegation.cancel", {name: value for name, value in named.items() if value is not None}
    )
    show(args, found, lambda one, style: f"{one.get('delegation')} {one.get('state')}")
    return exits.OK
