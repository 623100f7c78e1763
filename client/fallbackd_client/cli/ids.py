"""Ids of delegations as people type them: whole, their beginning, or `@last`."""

from __future__ import annotations

import re

from fallbackd_client.cli.output import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.client import Client

_LOOKED_AT = 1000
"""So many of the newest delegations are looked through."""
_WHOLE_CHARS = 20
HELP = "its id, the beginning of it, or @last, @-2, …"


def whole_id(client: Client, given: str) -> str:
    """
    The id that is meant. One that nothing fits is left as it is: the daemon says what is wrong.

    Raises:
        UsageError: Several fit, or there are not so many.
    """
    if given.startswith("@"):
        return _counted(client, given)
    if len(given) >= _WHOLE_CHARS or not re.fullmatch("d[0-9a-f]{3,}", given):
        return given
    found = [one for one in _newest(client, _LOOKED_AT) if one.startswith(given)]
    if given in found or not found:
        return given
    if len(found) > 1:
        some = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
        raise UsageError(f"{given} fits {len(found)} delegations ({some}); give more of the id")
    return found[0]


def _counted(client: Client, given: str) -> str:
    number = "1" if given == "@last" else given.removeprefix("@-")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _LOOKED_AT):
        raise UsageError(f"{given} is not an id; use @last for the newest, @-2 for the one before")
    found = _newest(client, int(number))
    if len(found) < int(number):
        raise UsageError(f"there is no {given}: the daemon knows {len(found)} delegations")
    return found[-1]


def _newest(client: Client, limit: int) -> list[str]:
    answer = client.call("delegation.list", {"limit": limit})
    return [str(one.get("delegation")) for one in answer.get("delegations") or []]
