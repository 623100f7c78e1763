"""Durations as people type them."""

from __future__ import annotations

import argparse
import time

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
    The same, but not nothing.

    Raises:
        argparse.ArgumentTypeError: It is no duration, or 0.
    """
    if (found_s := duration_s(text)) > 0:
        return found_s
    raise argparse.ArgumentTypeError(f"{text!r} is no time at all: write 90s, 5m, 1h30m or more")


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
