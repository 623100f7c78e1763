"""Names of zones as messages print them: IANA, offsets, and the abbreviations that are common."""

import re
from datetime import UTC, timedelta, tzinfo
from datetime import timezone as fixed_zone

# Those that follow daylight saving by themselves are places; the others are what they say.
_PLACES = {"PT": "America/Los_Angeles", "MT": "America/Denver", "CT": "America/Chicago"}
_PLACES |= {"ET": "America/New_York"}
_HOURS = {
    "PST": -8, "PDT": -7, "MST": -7, "MDT": -6, "CST": -6, "CDT": -5, "EST": -5, "EDT": -4,
    "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2, "MEZ": 1, "MESZ": 2, "EET": 2, "EEST": 3,
    "MSK": 3, "IST": 5.5, "SGT": 8, "HKT": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11,
}  # fmt: skip
ABBREVIATIONS = "|".join(sorted((*_PLACES, *_HOURS), key=len, reverse=True))

PATTERN = (
    r"(?:\s*\(?(?P<zone>(?:UTC|GMT)\s?[+-]\d{1,2}(?::?\d\d)?|UTC|GMT|Z"
    rf"|(?-i:{ABBREVIATIONS})"
    r"|[A-Z][A-Za-z]+(?:/[A-Z][A-Za-z_+-]+\d{0,2}){1,2}|[+-]\d\d:?\d\d)(?![A-Za-z\d])\)?)?"
)
"""A group `zone` behind a clock time, if there is one."""


def zone_of(name: str | None) -> tzinfo | None:
    """None: the machine's zone. An unknown name counts as none."""
    if not name:
        return None
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if match := re.fullmatch(r"(?:UTC|GMT)?\s?([+-])(\d{1,2})(?::?(\d\d))?", name, re.I):
        sign = -1 if match[1] == "-" else 1
        from_utc = timedelta(hours=int(match[2]), minutes=int(match[3] or 0)) * sign
        return fixed_zone(from_utc) if abs(from_utc) < timedelta(hours=24) else None
    if name in _HOURS:
        return fixed_zone(timedelta(hours=_HOURS[name]))
    from zoneinfo import ZoneInfo  # slow to load, and rarely needed

    try:
        return ZoneInfo(_PLACES.get(name, name))
    except (KeyError, ValueError, OSError):
        return None
