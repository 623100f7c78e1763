"""What a person is told about a database that cannot be written."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from tests.stores.hardship import no_file_beyond

from fallbackd.stores.opening import Damaged, Removed, StoreTooNew
from fallbackd.stores.trouble import sentence, warn

PATH = Path("/state/fallbackd.db")


def of_code(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what it says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (of_code(sqlite3.SQLITE_FULL), "what it says; free some space"),
        (of_code(sqlite3.SQLITE_READONLY | 1 << 8), "what it says; let this user write"),
        (of_code(sqlite3.SQLITE_CANTOPEN), "what it says; let this user write"),
        (of_code(sqlite3.SQLITE_BUSY), "what it says; end the program that holds it"),
        (of_code(sqlite3.SQLITE_IOERR | 3 << 8), "what it says; look at its disk"),
        (of_code(sqlite3.SQLITE_CORRUPT), "what it says; restart the daemon"),
        (sqlite3.ProgrammingError("no code"), "no code; look at its disk"),
        (Damaged("bad page"), "bad page; restart the daemon"),
        (OSError(errno.ENOSPC, "No space left", "/state"), "No space left; free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "let this user write"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "move away the file"),
        (Removed("it was removed"), "it was removed; put it back and writing resumes by itself"),
        (OSError("it was closed"), "it was closed; look at its disk"),
    ],
)
def test_it_names_the_file_the_cause_and_the_cure(error: Exception, advice: str) -> None:
    said = sentence(PATH, error)
    assert said.startswith("/state/fallbackd.db cannot be written: ")
    assert advice in said


def test_a_newer_version_speaks_for_itself() -> None:
    assert sentence(PATH, StoreTooNew("newer, start that one")) == "newer, start that one"


def test_a_log_that_cannot_be_written_either_is_no_further_trouble(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with no_file_beyond(1):
        warn("store.stopped_writing", problem="full")
    warn("store.stopped_writing", problem="said")
    assert "said" in capfd.readouterr().out
