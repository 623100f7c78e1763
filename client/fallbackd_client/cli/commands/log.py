"""`log`: what the agent of an attempt said and did, or what its program printed."""

from __future__ import annotations

import argparse
import sys
import time

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import emit_json, note, safe
from fallbackd_client.cli.parsing import PROG
from fallbackd_client.wire.codes import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


_POLL_S = 0.25
_PIECE_BYTES = 65536
_TEXT_BYTES = 1048576
"""Of output from which text is made."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "delegation", metavar="DELEGATION", nargs="?", default=ids.LAST, help=ids.HELP
    )
    parser.add_argument("-f", "--follow", action="store_true", help="until the delegation ends")
    parser.add_argument("--raw", action="store_true", help="print what the program printed")
    parser.add_argument("--attempt", metavar="A", help="which attempt (default: the last one)")


def run(args: argparse.Namespace, client: Client) -> int:
    """
    Print the log, without control characters; with `--json` the pieces as they came, one a line.

    Following goes over to the next attempt when there is one, unless an attempt was named.
    """
    reading = _Reading(args, client)
    while True:
        is_whole = reading.print_what_is_there()
        if not args.follow:
            reading.explain_nothing()
            return exits.OK
        if is_whole or reading.attempt is None:
            delegation = client.call("delegation.get", {"delegation": args.delegation})
            following = None if args.attempt else _next(delegation, reading.attempt)
            if following is not None:
                reading.begin(following)
                continue
            if args.attempt or delegation.get("state") in END_STATES:
                return exits.OK
        time.sleep(_POLL_S)


class _Reading:
    """The log of an attempt, and how much of it is printed."""

    def __init__(self, args: argparse.Namespace, client: Client) -> None:
        self._args = args
        self._client = client
        self._has_shown = False
        self.begin(args.attempt)

    def begin(self, attempt: str | None) -> None:
        """Begin with the delegation; None: the newest one, once there is one."""
        self.attempt = attempt
        self._offset = 0

    def print_what_is_there(self) -> bool:
        """Returns whether the attempt has ended and its log is printed to the end."""
        while True:
            before = self._offset
            found = _piece(self._args, self._client, self.attempt, before)
            self._offset = found["next_offset"]
            self._has_shown = self._has_shown or bool(found.get("text"))
            self.attempt = self.attempt or found.get("attempt")
            if found.get("ended") and self._offset >= found.get("size_bytes", 0):
                return True
            if self._offset == before:
                return False

    def explain_nothing(self) -> None:
        """Say why nothing was printed."""
        args = self._args
        if self._offset and not (args.raw or args.json or self._has_shown):
            note(f"no text in the output; see all of it: {PROG} log --raw {args.delegation}")
        elif self.attempt is None and not args.json:
            note("there is no log: no attempt was made")


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
