"""
Opening the database file, whatever state it is in.

A file that is damaged is renamed, never deleted, and a new one is made. A file that
cannot be written is read. One of a newer version is left alone.

Records are JSON in a BLOB. Where their own shape changes so that the old one cannot be decoded,
SQLite rewrites them; one that is not JSON stays as it is, and is put aside when it is read.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fallbackd.lib.failpoints import hit
from fallbackd.stores.writes import STATEMENTS


def _rewritten(table: str, path: str, becomes: str, *, kind: str) -> str:
    """A statement that rewrites the records whose `path` is of this kind; `r` is the record."""
    return (
        f"UPDATE {table} SET record = (SELECT CAST({becomes} AS BLOB) FROM"  # noqa: S608 - our own words
        " (SELECT CAST(record AS TEXT) AS r))"
        " WHERE CASE WHEN json_valid(CAST(record AS TEXT))"
        f" THEN json_type(CAST(record AS TEXT), '{path}') = '{kind}' END"
    )


def _array(name: str) -> str:
    return f"json(coalesce(json_extract(r, '$.{name}'), '[]'))"


def _flag(name: str, default: int) -> str:
    return f"json(iif(coalesce(json_extract(r, '$.{name}'), {default}), 'true', 'false'))"


_TURN_OF_DELEGATION = (
    f"'candidates', {_array('candidates')}, 'role', json_extract(r, '$.role'),"
    f" 'creative', {_flag('creative', 0)},"
    " 'on_outage', coalesce(json_extract(r, '$.on_outage'), 'fallback'),"
    f" 'allow_metered', {_flag('allow_metered', 1)}, 'differs_from', {_array('differs_from')},"
    " 'fallback_on', json(coalesce(json_extract(r, '$.fallback_on'), 'null')),"
    " 'max_hops', coalesce(json_extract(r, '$.max_hops'), 3),"
    " 'budget', coalesce(json_extract(r, '$.budget'), 8),"
    " 'prompt_tokens', json_extract(r, '$.prompt_tokens'),"
    f" 'inherited_tried', {_array('inherited_tried')}, 'marks', {_array('marks')}"
)
_MOVED_INTO_TURN = ", ".join(
    f"'$.{name}'"
    for name in (
        "candidates", "creative", "on_outage", "allow_metered", "differs_from", "fallback_on",
        "max_hops", "budget", "prompt_tokens", "inherited_tried", "marks",
    )
)  # fmt: skip
_MESSAGE = (
    "json_remove(json_set(json_extract(r, '$.turn'), '$.id', json_extract(r, '$.turn.message'),"
    " '$.turn', json(coalesce(json_extract(r, '$.turn.failover'), 'null'))),"
    " '$.message', '$.failover')"
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE health (scope TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE meters (backend TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE sessions (session TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE delegations (delegation TEXT PRIMARY KEY, session TEXT NOT NULL,"
        " state TEXT NOT NULL, is_ended INTEGER NOT NULL, request_id TEXT,"
        " created_at REAL NOT NULL, ended_at REAL, record BLOB NOT NULL)",
        "CREATE INDEX delegations_by_age ON delegations (created_at, delegation)",
        "CREATE INDEX delegations_by_session ON delegations (session, created_at, delegation)",
        "CREATE INDEX delegations_by_state ON delegations (state, created_at, delegation)",
        "CREATE INDEX delegations_by_request ON delegations (request_id, created_at, delegation)"
        " WHERE request_id IS NOT NULL",
        "CREATE INDEX delegations_unfinished ON delegations (created_at) WHERE is_ended = 0",
        "CREATE INDEX delegations_by_end ON delegations (ended_at) WHERE is_ended = 1",
        "CREATE TABLE stories (place INTEGER PRIMARY KEY, delegation TEXT NOT NULL,"
        " record BLOB NOT NULL)",
        "CREATE INDEX stories_by_delegation ON stories (delegation, place)",
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, at REAL NOT NULL, record BLOB NOT NULL)",
        "CREATE TABLE finished (state TEXT PRIMARY KEY, count INTEGER NOT NULL)",
        "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # Records that could not be read: taken out of the way, kept for people.
        "CREATE TABLE damaged (kind TEXT NOT NULL, key TEXT NOT NULL, record BLOB)",
    ),
    (
        # What was asked of a chain and what was tried is one record, `turn`, wherever it is kept.
        _rewritten(
            "delegations",
            "$.candidates",
            f"json_set(json_remove(r, {_MOVED_INTO_TURN}),"
            f" '$.turn', json_object({_TURN_OF_DELEGATION}))",
            kind="array",
        ),
        _rewritten(
            "sessions",
            "$.turn",
            f"json_set(json_remove(r, '$.turn'), '$.message', json({_MESSAGE}))",
            kind="object",
        ),
        *(
            _rewritten(
                "sessions",
                f"$.{place}failover",
                f"json_set(json_remove(r, '$.{place}failover'),"
                f" '$.{place}turn', json(json_extract(r, '$.{place}failover')))",
                kind="object",
            )
            for place in ("", "rescue.")
        ),
    ),
    ("CREATE TABLE hours (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",),
)
"""The n-th brings a database of version n to version n + 1; 0 is an empty file."""

SCHEMA_VERSION = len(MIGRATIONS)


CHECK_ALL_BYTES = 32 * 1024 * 1024
"""Up to this size the whole file is checked; above, what a start needs: it must not take long."""
NEEDED = ("meta", "health", "meters", "sessions", "finished", "facts")
MAX_LOG_PAGES = 8_000
"""Pages of 4 KiB: more than half a minute of the busiest host writes."""
MAX_LOG_BYTES = 16 * 1024 * 1024
"""Size to which the log shrinks after a burst of writes."""
BUSY_TIMEOUT_S = 5.0
"""Wait for a tool that has the file open and locks it."""


class StoreTooNew(Exception):
    """The database was written by a newer version of the daemon."""


class Damaged(Exception):
    """The file is no database of ours any more: says why."""


class Removed(OSError):
    """The file that was opened is no longer at its path."""


class Opened(NamedTuple):
    connection: sqlite3.Connection | None
    """Open connection; None: nothing can be read or written."""
    trouble: Exception | None
    """Reason why nothing can be written."""
    set_aside: tuple[str, ...]


def open_database(path: Path, *, now: float) -> Opened:
    """
    Raises:
        StoreTooNew: The file is left as it is.
    """
    try:
        try:
            connection, trouble = _open_to_write(path)
            return Opened(connection, trouble, ())
        except Damaged:
            set_aside = put_aside(path, now=now)
        connection, trouble = _open_to_write(path)
        return Opened(connection, trouble, set_aside)
    except (sqlite3.Error, OSError, Damaged) as error:
        return Opened(_open_to_read(path), error, ())


def open_again(path: Path) -> sqlite3.Connection:
    """
    Open a file for writing that could not be written before.

    Raises:
        sqlite3.Error, OSError, Damaged, StoreTooNew: It still cannot be.
    """
    connection, trouble = _open_to_write(path)
    if trouble is not None:
        connection.close()
        raise trouble
    return connection


def put_aside(path: Path, *, now: float) -> tuple[str, ...]:
    """Rename a damaged database with what belongs to it. Returns where it is now."""
    target = path.with_name(f"{path.name}.corrupt-{int(now)}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{int(now)}.{number}")
    moved = []
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{target}{suffix}")
            moved.append(f"{target}{suffix}")
    return tuple(moved)


def lying_aside(path: Path) -> tuple[str, ...]:
    """Paths of damaged files of this database, also of earlier runs."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return ()
    begin = (f"{path.name}.corrupt-", f"{path.name}.lost-")
    return tuple(str(path.with_name(name)) for name in names if name.startswith(begin))


def note_loss(path: Path, *, now: float) -> str | None:
    """
    Leave a mark beside a database that is missing or empty although it was in use.

    While the mark lies there, records count as incomplete: nothing is taken for an orphan.

    Returns:
        Its path; None: the database is there.
    """
    if _size(path) > 0 or _size(Path(f"{path}-wal")) > 0:
        return None
    mark = path.with_name(f"{path.name}.lost-{int(now)}")
    with suppress(OSError):  # a full disk: it is said all the same
        if path.exists():
            path.rename(mark)
        else:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return str(mark)


_NOT_THE_CONTENT = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_RANGE,
    }
)
"""Errors about the disk, other programs or our own calls. All others say what the file holds."""


def is_damage(error: Exception) -> bool:
    if isinstance(error, Damaged | UnicodeDecodeError):  # names in its schema are text too
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF not in _NOT_THE_CONTENT


def _open_to_write(path: Path) -> tuple[sqlite3.Connection, Exception | None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files the mode of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    path.chmod(0o600)
    _refuse_an_emptied_file(path)
    with _closing_on_error(connect(path, "mode=rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        version = _sound_version(connection, path)
        trouble: Exception | None = None
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
            # The tick does it, so that a copy of file and log finds a quiet half minute.
            connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_LOG_PAGES}")
            if version < SCHEMA_VERSION:
                _migrate(connection, version)
            _try_to_write(connection)
        except sqlite3.OperationalError as error:
            if version < SCHEMA_VERSION or is_damage(error):
                raise
            trouble = error
        return connection, trouble


def _open_to_read(path: Path) -> sqlite3.Connection | None:
    """An old version is not read: only a migration would make it readable."""
    for how in ("mode=ro", "immutable=1"):
        # The second is for a directory in which SQLite cannot make its files: after a clean end
        # everything is in the one file.
        if how == "immutable=1" and _size(Path(f"{path}-wal")) > 0:
            return None
        try:
            if not path.exists():
                return None
            with _closing_on_error(connect(path, how)) as connection:
                if _version(connection, path) == SCHEMA_VERSION:
                    return connection
                connection.close()
        except (sqlite3.Error, OSError, Damaged):
            continue
        break
    return None


def connect(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    # A damaged key must not keep the other records from being read.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


@contextmanager
def _closing_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close after an error; an error that means damage becomes `Damaged`."""
    try:
        yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        if is_damage(error):
            raise Damaged(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise


def _refuse_an_emptied_file(path: Path) -> None:
    """SQLite deletes the log of a database that has become empty, with all that is in it."""
    if _size(path) == 0 and _size(Path(f"{path}-wal")) > 0:
        raise Damaged("the file is empty, but its log is not")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _version(connection: sqlite3.Connection, path: Path) -> int:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return 0
    if "meta" not in tables:
        raise Damaged("it holds no records of this daemon")
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise Damaged("it does not say its version")
    version = int(row[0])
    if version == 0:
        raise Damaged("it says version 0, and has tables")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path} was written by a newer fallbackd (its version is {version}, this one knows"
            f" {SCHEMA_VERSION}): start that one, or name another state directory"
        )
    return version


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if _size(path) <= CHECK_ALL_BYTES:
        checks = ["PRAGMA quick_check(1)"]
    else:
        checks = [f"PRAGMA quick_check({table})" for table in NEEDED]
    for check in checks:
        answer = connection.execute(check).fetchone()
        if answer != ("ok",):
            raise Damaged(str(answer[0] if answer else "no answer to an integrity check"))


def _sound_version(connection: sqlite3.Connection, path: Path) -> int:
    """
    Its version, where its pages are sound and each statement of ours fits its schema: a name in it
    may be another one, and then nothing could ever be written.
    """
    try:
        version = _version(connection, path)
        _check(connection, path)
        if version == SCHEMA_VERSION:
            for statement, row in STATEMENTS:
                connection.execute(f"EXPLAIN {statement}", row)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise Damaged(f"its schema is not the one of this daemon: {error}") from error
        raise
    return version


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    with transaction(connection):
        connection.execute(
            "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
        )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        hit("store.migration.within")
        connection.execute(
            "REPLACE INTO meta (key, value) VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),)
        )


def _try_to_write(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        connection.execute(
            "INSERT INTO meta (key, value) VALUES ('openings', '1')"
            " ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
        )
        hit("store.opening.within")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, also when it is the commit that fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
