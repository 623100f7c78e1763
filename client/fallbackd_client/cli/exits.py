"""Exit codes, and which outcome ends in which."""

from __future__ import annotations

from fallbackd_client.wire import codes

OK = 0
FAILED = 1
USAGE = 2
NO_DAEMON = 69
TRY_LATER = 75
NOT_PERMITTED = 77
CONFIG = 78
INTERRUPTED = 130

_OF_CODE = {
    codes.INVALID_REQUEST: USAGE,
    codes.METHOD_NOT_FOUND: USAGE,
    codes.INVALID_PARAMS: USAGE,
    codes.UNKNOWN_ID: USAGE,
    codes.BUSY: TRY_LATER,
    codes.REFUSED: TRY_LATER,
    codes.DRAINING: TRY_LATER,
    codes.NOT_PERMITTED: NOT_PERMITTED,
    codes.CONFIG_INVALID: CONFIG,
    codes.WAIT_OVER: TRY_LATER,
    codes.TOO_MANY: TRY_LATER,
}

_OF_STATE = {
    "succeeded": OK,
    "failed": FAILED,
    "cancelled": FAILED,
    "refused": TRY_LATER,
    "handed_back": TRY_LATER,
    "awaiting_answer": TRY_LATER,
}


def of_error(code: int) -> int:
    """
    Return the status for an error of the daemon; unknown ones and our own faults are failures.
    """
    return _OF_CODE.get(code, FAILED)


def of_delegation(state: str, *, waited: bool) -> int:
    """
    For a delegation as it was answered.

    Args:
        waited: Its end was asked for: work that still runs means that the wait is over.
    """
    return _OF_STATE.get(state, TRY_LATER if waited else OK)
