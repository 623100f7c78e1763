"""`log`: what the agent of an attempt said and did, or what its program printed."""

from __future__ import annotations

import argparse
import sys
import time

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import emit_json, note
from fallbackd_client.cli.parsing import PROG
from fallbackd_client.cli.render import safe
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


_POLL_S = 0.25
_PIECE_BYTES = 65536
_TEXT_BYTES = 1048576
"""Of output from which text is made."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    parser.add_argument("-f", "--follow", action="store_true", help="until the delegation ends")
    parser.add_argument("--raw", action="store_true", help="print what the program printed")
    parser.add_argument("--attempt", metavar="A", help="which attempt (default: the last one)")


def run(args: argparse.Namespace, client: Client) -> int:
    """
    Print the log, without control characters; with `--json` the pieces as they came, one a line.

    Following goes over to the next attempt when there is one, unless an attempt was named.
    """
    attempt, offset, has_shown = args.attempt, 0, False
    while True:
        found = _piece(args, client, attempt, offset)
        has_shown = has_shown or bool(found.get("text"))
        is_whole = bool(found.get("ended")) and found["next_offset"] >= found.get("size_bytes", 0)
        is_new = found["next_offset"] != offset
        offset = found["next_offset"]
        attempt = attempt or found.get("attempt")
        if is_new and not is_whole:
            continue
        if not args.follow:
            if not (args.raw or args.json or has_shown) and offset:
                note(f"no text in the output; see all of it: {PROG} log --raw {args.delegation}")
            elif attempt is None and not args.json:
                note("there is no log: no attempt was made")
            return exits.OK
        if is_whole or attempt is None:
            delegation = client.call("delegation.get", {"delegation": args.delegation})
            following = None if args.attempt else _next(delegation, attempt)
            if following is not None:
                attempt, offset = following, 0
                continue
            if args.attempt or delegation.get("state") in END_STATES:
                return exits.OK
        time.sleep(_POLL_S)


def _piece(
    args: argparse.Namespace, client: Client, attempt: str | None, offset: int
) -> dict[str, Json]:
    params: dict[str, Json] = {
        "delegation": args.delegation,
        "offset": offset,
        "max_bytes": _PIECE_BYTES if args.raw else _TEXT_BYTES,
    }
    if not args.raw:
        params["form"] = "text"
    if attempt is not None:
        params["attempt"] = attempt
    found: dict[str, Json] = client.call("delegation.log", params)
    if args.json:
        if found["next_offset"] != offset:
            emit_json(found)
    else:
        sys.stdout.write(safe(found.get("text") or ""))
        sys.stdout.flush()
    return found


def _next(delegation: dict[str, Json], attempt: str | None) -> str | None:
    """The attempt after this one, if it has begun."""
    names = [one.get("attempt") for one in delegation.get("attempts") or []]
    if attempt not in names:
        return names[0] if attempt is None and names else None
    place = names.index(attempt) + 1
    return names[place] if place < len(names) else None
