"""`log`: the recorded output of an attempt."""

from __future__ import annotations

import argparse
import sys
import time

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import emit_json
from fallbackd_client.cli.render import safe
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


_POLL_S = 0.25
_PIECE_BYTES = 65536


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delegation", metavar="DELEGATION", help=ids.HELP)
    parser.add_argument("-f", "--follow", action="store_true", help="until the delegation ends")
    parser.add_argument("--attempt", metavar="A", help="which attempt (default: the last one)")


def run(args: argparse.Namespace, client: Client) -> int:
    """
    Print the log, without control characters; with `--json` the pieces as they came, one a line.

    Following goes over to the next attempt when there is one, unless an attempt was named.
    """
    attempt, offset = args.attempt, 0
    while True:
        found = _piece(args, client, attempt, offset)
        if not args.follow:
            if found["next_offset"] == offset:
                return exits.OK
            offset = found["next_offset"]
            attempt = attempt or found.get("attempt")
            continue
        read_all = found["next_offset"] == offset
        offset = found["next_offset"]
        attempt = attempt or found.get("attempt")
        if not read_all:
            continue
        if found.get("ended") or attempt is None:
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
        "max_bytes": _PIECE_BYTES,
    }
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
