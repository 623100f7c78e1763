"""Ids of delegations as people type them: whole, their beginning, or `@last`."""

from __future__ import annotations

import re
from itertools import pairwise

from fallbackd_client.cli.output import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_COUNTED = 1000
"""So far back a delegation can be named by its place."""
_SOME = 5
"""So many of those that an id fits are named."""
_WHOLE_CHARS = 20
_SHORT_CHARS = 8
_TIME_CHARS = 12
GATEWAY_CALL = "ex-"
"""How the id of one begins."""
HELP = "its id, the beginning of it, or @last, @-2, …"
LAST = "@last"
"""The delegation that is shown where none is named."""


def shortened(ids: list[str], *, is_part: bool = False) -> list[str]:
    """
    Each as short as it is the beginning of no other one; 8 characters at least.

    Args:
        is_part: There are others between these. Ids begin with the time, to the millisecond.
    """
    ordered = sorted(set(ids))
    least = dict.fromkeys(ordered, _TIME_CHARS if is_part else _SHORT_CHARS)
    for one, other in pairwise(ordered):
        pairs = enumerate(zip(one, other, strict=False))
        common = 1 + next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
        least[one], least[other] = max(least[one], common), max(least[other], common)
    return [one[: least[one]] for one in ids]


def whole_id(client: Client, given: str) -> str:
    """
    The id that is meant. One that nothing fits is left as it is: the daemon says what is wrong.

    Raises:
        UsageError: Several fit, or there are not so many.
    """
    if given.startswith("@"):
        return _counted(client, given)
    if len(given) >= _WHOLE_CHARS or not re.fullmatch("d[0-9a-f]{2,}", given):
        return given
    found = _newest(client, _SOME + 1, prefix=given)
    if given in found or not found:
        return given
    if len(found) > 1:
        some = ", ".join(found[:_SOME]) + (", …" if len(found) > _SOME else "")
        raise UsageError(f"{given} fits several delegations ({some}); give more of the id")
    return found[0]


def _counted(client: Client, given: str) -> str:
    number = "1" if given == "@last" else given.removeprefix("@-")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _COUNTED):
        raise UsageError(f"{given} is not an id; use @last for the newest, @-2 for the one before")
    found = _newest(client, int(number))
    if len(found) < int(number):
        known = f"{len(found)} delegation{'' if len(found) == 1 else 's'}"
        raise UsageError(f"there is no {given}: the daemon knows {known}")
    return found[-1]


def _newest(client: Client, limit: int, *, prefix: str | None = None) -> list[str]:
    params: dict[str, Json] = {"limit": limit, "brief": True}
    if prefix is not None:
        params["prefix"] = prefix
    answer = client.call("delegation.list", params)
    return [str(one.get("delegation")) for one in answer.get("lines") or []]
