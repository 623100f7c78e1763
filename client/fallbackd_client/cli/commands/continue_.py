"""`continue`: carry a conversation that a person had with one agent over to another."""

from __future__ import annotations

import argparse
import os
import select
import shlex
import sys
import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import (
    UsageError,
    duration,
    emit_json,
    note,
    one_line,
    style_of,
    table,
)
from fallbackd_client.paths import state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.interactive.carrying import Carried, ReadSession, Target
    from fallbackd_conversations.agents import FoundSession

AGENTS = ("claude", "codex", "gemini", "opencode")
_LISTED = 5
_LOOK_S = 0.2
LAST_LIMITED = "@last-limited"


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help=f"{'|'.join(AGENTS)}: its newest session in this directory; AGENT:ID: this one;"
        f" {LAST_LIMITED}: the last one that met a limit (default: ask, or list)",
    )
    parser.add_argument(
        "--to",
        metavar="TARGET",
        help="a backend or a chain (default: the next available one of the source's chain)",
    )
    parser.add_argument(
        "--interactive", action="store_true", help="start it at once, without asking"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    from fallbackd_client.interactive.carrying import NoTarget, NotCarried, choose, read
    from fallbackd_client.interactive.hook import hold

    session = _session(args, client)
    if session is None:
        return exits.OK
    environ, home = dict(os.environ), os.path.expanduser("~")
    try:
        targets = choose(client, session.agent, args.to, environ, home=home)
        is_resuming = _is_resuming(args, session)
        stored = read(session, environ, home=home)
    except (NoTarget, NotCarried) as error:
        raise UsageError(str(error)) from error
    target, carried = _carried(stored, targets, environ, home)
    if is_resuming:
        hold(session.id, target.backend)
    if args.json:
        emit_json({**_document(session, target, carried), "press_esc": is_resuming})
    else:
        turns = f"{carried.turns} {'turn' if carried.turns == 1 else 'turns'}"
        without = f"; {carried.left_out} left out" if carried.left_out else ""
        note(f"{session.agent} → {target.backend}: {turns} carried over{without}")
        if carried.waits:
            note('the last prompt has no answer yet: send "continue" to have it answered')
        print(_line(carried), flush=True)
    if args.interactive or (not args.json and _is_wanted()):
        if not is_resuming:
            _is_resuming(args, session)  # it may have met its limit since
        _start(carried)
    return exits.OK


def _is_resuming(args: argparse.Namespace, session: FoundSession) -> bool:
    """
    Return whether the open agent continues by itself at the reset of its limit.

    On a terminal the person is asked to cancel that, and it is waited for: two agents would do the
    same work in one directory.

    Raises:
        UsageError: It has continued, or nothing can be started beside it.
    """
    from fallbackd_client.interactive.carrying import resuming

    if resuming(session) != "waits":
        return False
    first = f"press Esc in {session.agent} first: it continues by itself at the reset of its limit"
    if not _is_terminal():
        if args.interactive:
            raise UsageError(f"{first}, and both would do the same work in {session.cwd}")
        note(first)
        return True
    note(f"{first}. Waiting for that; press Enter to continue here all the same")
    while (state := resuming(session)) == "waits":
        if select.select([sys.stdin], [], [], _LOOK_S)[0]:
            sys.stdin.readline()
            return True
    if state == "started":
        raise UsageError(f"{session.agent} has continued by itself; nothing was started here")
    return False


def _carried(
    session: ReadSession, targets: list[Target], environ: dict[str, str], home: str
) -> tuple[Target, Carried]:
    """Carry the conversation to the first agent that can take it."""
    from fallbackd_client.interactive.carrying import NotCarried, carry

    why = []
    for target in targets:
        try:
            return target, carry(
                session, target, environ, home=home, now=time.time(), state=state_dir(os.environ)
            )
        except NotCarried as error:
            why.append(str(error))
    raise UsageError("; ".join(why))


def _source(given: str | None) -> tuple[str, str, str]:
    """The agent, whether an id is named, and the id."""
    agent, colon, id = (given or "").partition(":")
    if given not in (None, LAST_LIMITED) and agent not in AGENTS:
        raise UsageError(f"--from takes {', '.join(AGENTS)}, AGENT:ID or {LAST_LIMITED}")
    return agent, colon, id


def _session(args: argparse.Namespace, client: Client) -> FoundSession | None:
    """Return the chosen session; None: the sessions were listed instead."""
    from fallbackd_client.interactive.carrying import (
        by_id,
        is_here,
        last_limited,
        newest,
        of_attempts,
        unread,
    )

    environ, home, cwd = os.environ, os.path.expanduser("~"), os.getcwd()
    agent, colon, id = _source(args.source)
    agents = (agent,) if agent in AGENTS else AGENTS
    for why in unread(agents, environ, home=home):
        note(why)
    if colon:
        return _required(by_id(agent, id, environ, home=home), f"{agent} has no session {id}")
    found = newest(agents, environ, home=home, limit=_LISTED, without=of_attempts(client))
    if not found:
        raise UsageError(f"no sessions of {', '.join(agents)} found")
    limited = last_limited(found, cwd)
    if args.source == LAST_LIMITED:
        return _required(limited, "no session has met a limit")
    here = [one for one in found if is_here(one, cwd)]
    if args.source is not None:
        return next(iter(here or found))
    return _asked(args, found, limited or next(iter(here or found)))


def _required(found: FoundSession | None, otherwise: str) -> FoundSession:
    if found is None:
        raise UsageError(f"{otherwise}; list them with: fallbackd-client continue")
    return found


def _asked(
    args: argparse.Namespace, found: list[FoundSession], default: FoundSession
) -> FoundSession | None:
    if args.json:
        emit_json({"sessions": [_row(one) for one in found], "default": _row(default)})
        return None
    print(_list_view(found), flush=True)
    if not _is_terminal():
        hint = f"fallbackd-client continue --from {default.agent}:{default.id}"
        note(f"continue one of them with: {hint}")
        return None
    at = found.index(default) + 1
    print(f"Continue which one? [{at}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip() or str(at)
    if not (answer.isascii() and answer.isdecimal()) or not 1 <= int(answer) <= len(found):
        raise UsageError(f"{answer!r} is none of 1 to {len(found)}")
    return found[int(answer) - 1]


def _list_view(found: list[FoundSession]) -> str:
    now = time.time()
    rows = [
        [
            str(number),
            one.agent,
            f"{duration(max(0.0, now - one.changed_at))} ago",
            one_line(_short(one.cwd)),
            one_line(one.first_words),
        ]
        for number, one in enumerate(found, 1)
    ]
    return table(["", "AGENT", "LAST", "DIRECTORY", "BEGINS WITH"], rows, style_of(sys.stdout))


def _short(path: str) -> str:
    home = os.path.expanduser("~").rstrip("/")
    return "~" + path[len(home) :] if home and path.startswith(home + "/") else path


def _row(one: FoundSession) -> dict[str, Json]:
    return {
        "agent": one.agent,
        "id": one.id,
        "cwd": one.cwd,
        "changed_at": one.changed_at,
        "first_words": one.first_words,
    }


def _document(session: FoundSession, target: Target, carried: Carried) -> dict[str, Json]:
    return {
        "from": {"agent": session.agent, "id": session.id},
        "to": {"backend": target.backend, "agent": target.agent, "id": carried.id},
        "turns": carried.turns,
        "left_out": carried.left_out,
        "prompt": carried.prompt,
        "waits": carried.waits,
        "cwd": carried.cwd,
        "env": dict(carried.environ),
        "command": carried.command,
    }


def _line(carried: Carried) -> str:
    """Quote a command for a shell."""
    env = [f"{name}={shlex.quote(value)}" for name, value in carried.environ.items()]
    words = " ".join([*env, shlex.join(carried.command)])
    return words if carried.cwd == os.getcwd() else f"cd {shlex.quote(carried.cwd)} && {words}"


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _is_wanted() -> bool:
    if not _is_terminal():
        return False
    print("Start it now? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _start(carried: Carried) -> None:
    """Start the agent in place of this program."""
    program = carried.command[0]
    try:
        os.chdir(carried.cwd)
        environ = {**os.environ, **carried.environ}
        os.execvpe(program, carried.command, environ)  # noqa: S606 # no shell is wanted
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}") from error
