"""Saying what is wrong with a database, to the person who can change it."""

import errno
import sqlite3
from contextlib import suppress
from pathlib import Path

import structlog

from fallbackd.stores.opening import Damaged, Removed, StoreTooNew, is_damage

FULL = "free some space on its disk; writing resumes by itself"
READ_ONLY = "let this user write to the file and its directory; writing resumes by itself"
DAMAGED = "restart the daemon: the file is put aside, and a new one is made"
IN_THE_WAY = "move away the file that is where its directory belongs; writing resumes by itself"
LOCKED = "end the program that holds it; writing resumes by itself"
BROKEN = "look at its disk (space, limits, errors); writing resumes by itself"

REMOVED = (
    "put it back and writing resumes by itself; otherwise restart the daemon, which makes a new one"
)

ADVICE_BY_CODE = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: READ_ONLY,
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
}
ADVICE_BY_ERRNO = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
    errno.EEXIST: IN_THE_WAY,
    errno.ENOTDIR: IN_THE_WAY,
}


def sentence(path: Path, error: Exception) -> str:
    """A sentence: the file, what is wrong with it, what to do."""
    if isinstance(error, StoreTooNew):
        return str(error)
    cause, advice = str(error), BROKEN
    if isinstance(error, Damaged) or is_damage(error):
        advice = DAMAGED
    elif isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        advice = ADVICE_BY_CODE.get(code & 0xFF, BROKEN) if code is not None else BROKEN
    elif isinstance(error, Removed):
        advice = REMOVED
    elif isinstance(error, OSError) and error.errno is not None:
        cause = error.strerror or str(error)
        advice = ADVICE_BY_ERRNO.get(error.errno, BROKEN)
    return f"{path} cannot be written: {cause}; {advice}"


def warn(event: str, **facts: object) -> None:
    """Log it. A disk that is full is often the one of the log as well: that changes nothing."""
    with suppress(OSError):
        structlog.get_logger().warning(event, **facts)
