"""The database file, seen from the one thread that works on it. Blocks; waits for the disk."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from fallbackd.core.health import Health
from fallbackd.core.history import HourUse
from fallbackd.core.ids import DelegationId
from fallbackd.core.records import Delegation, Meter, Session
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import Selection
from fallbackd.stores.mirror import LoadedRecords
from fallbackd.stores.opening import (
    Opened,
    Removed,
    connect,
    is_damage,
    lying_aside,
    open_again,
    open_database,
    put_aside,
    transaction,
)
from fallbackd.stores.trouble import warn
from fallbackd.stores.writes import (
    ADD_NOTE,
    ADD_STORY,
    DROP,
    PUT,
    RecordT,
    Undecodable,
    Value,
    Writes,
    decode,
)

MAX_CODE_POINT = 0x10FFFF
PRUNED_AT_ONCE = 500
"""Rows that one transaction deletes: the decisions in between must not wait long."""


class Database:
    """One file. Not safe for use by two threads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files_aside: tuple[str, ...] = ()
        self._records_aside: tuple[str, ...] = ()
        self._connection: sqlite3.Connection | None = None
        self._is_writable = False
        self._is_closed = False
        self._is_known = False
        """True once the content of the file has been loaded, or there was nothing to load."""
        self._file: tuple[int, int] | None = None

    @property
    def set_aside(self) -> tuple[str, ...]:
        """
        Paths of damaged files, while they lie there: what is missing here may be in them.
        `<path>: <table> <key>` for single records.
        """
        files = tuple(one for one in self._files_aside if os.path.lexists(one))
        return files + self._records_aside

    def open(self, *, now: float) -> tuple[LoadedRecords, Exception | None]:
        """
        Returns:
            The records, and why nothing can be written, if so.

        Raises:
            StoreTooNew: The file was written by a newer version.
        """
        opened = open_database(self.path, now=now)
        try:
            loaded = self._take(opened)
        except (sqlite3.Error, ValueError) as error:
            # The check of its pages found nothing wrong, reading it did.
            if opened.connection is not None:
                opened.connection.close()
            opened = _without(self.path, error, now=now)
            loaded = self._take(opened)
        if opened.set_aside:
            warn("store.set_aside", paths=opened.set_aside)
        earlier = tuple(one for one in lying_aside(self.path) if one not in opened.set_aside)
        self._files_aside = opened.set_aside + earlier
        return loaded, opened.trouble

    def _take(self, opened: Opened) -> LoadedRecords:
        self._records_aside = ()
        self._connection = opened.connection
        self._is_writable = opened.trouble is None
        self._file = _identity(self.path)
        self._is_known = opened.connection is not None or self._file is None
        if opened.connection is None:
            return LoadedRecords()
        return self._load(opened.connection)

    def _load(self, connection: sqlite3.Connection) -> LoadedRecords:
        def records(kind: type[RecordT], table: str, select: str) -> list[RecordT]:
            good: list[RecordT] = []
            bad: list[tuple[str, str]] = []
            for key, data in connection.execute(select):
                try:
                    good.append(decode(data, kind))
                except Undecodable as error:
                    bad.append((key, str(error)))
            for key, why in bad:
                self._skip(connection, table, key, why)
            return good

        (first,) = connection.execute("SELECT max(seq) FROM journal").fetchone()
        pruned = connection.execute("SELECT value FROM meta WHERE key = 'last_seq'").fetchone()
        return LoadedRecords(
            health=records(Health, "health", "SELECT scope, record FROM health"),
            meters=records(Meter, "meters", "SELECT backend, record FROM meters"),
            sessions=records(Session, "sessions", "SELECT session, record FROM sessions"),
            active=records(
                Delegation,
                "delegations",
                "SELECT delegation, record FROM delegations WHERE is_ended = 0"
                " ORDER BY created_at, delegation",
            ),
            finished=dict(connection.execute("SELECT state, count FROM finished")),
            facts=dict(connection.execute("SELECT key, value FROM facts")),
            last_seq=max(first or 0, int(pruned[0]) if pruned else 0),
        )

    def _skip(self, connection: sqlite3.Connection, table: str, key: str, why: str) -> None:
        """Take a record that cannot be read out of the way, into the table of such records."""
        warn("record.set_aside", table=table, key=key, why=why)
        self._records_aside += (f"{self.path}: {table} {key}",)
        if not self._is_writable:
            return
        with suppress(sqlite3.Error):  # said already; it is tried again at the next start
            self._move_to_damaged(connection, table, key)

    def _move_to_damaged(self, connection: sqlite3.Connection, table: str, key: str) -> None:
        column = {"health": "scope", "meters": "backend"}.get(table, table[:-1])
        with transaction(connection):
            connection.execute(
                f"INSERT INTO damaged SELECT ?, {column}, record FROM {table}"  # noqa: S608
                f" WHERE {column} = ?",
                (table, key),
            )
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))  # noqa: S608

    # Writing.

    def write(self, writes: Writes) -> None:
        """
        Write all rows, or none.

        Raises:
            sqlite3.Error, OSError, opening.Damaged, opening.StoreTooNew: None is written.
        """
        connection = self._writable()
        hit("store.commit.before")
        # The log has one order: what is synchronous takes along what came before it.
        how = "FULL" if writes.outlives_machine else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {how}")
        with transaction(connection):
            for (table, key), row in writes.rows.items():
                if row is None:
                    connection.execute(DROP[table], (key,))
                else:
                    _put(connection, table, row)
            connection.executemany(ADD_STORY, writes.stories)
            connection.executemany(ADD_NOTE, writes.notes)
            hit("store.commit.within")
        hit("store.commit.after")

    def prune_delegations(self, *, before_at: float) -> tuple[list[DelegationId], bool]:
        """Drop some old ended delegations and their stories. Returns them, and if more are left."""
        connection = self._writable()
        with transaction(connection):
            dropped = [
                DelegationId(one)
                for (one,) in connection.execute(
                    "SELECT delegation FROM delegations WHERE is_ended = 1 AND ended_at < ?"
                    " ORDER BY ended_at LIMIT ?",
                    (before_at, PRUNED_AT_ONCE),
                )
            ]
            rows = [(one,) for one in dropped]
            connection.executemany("DELETE FROM stories WHERE delegation = ?", rows)
            connection.executemany("DELETE FROM delegations WHERE delegation = ?", rows)
            hit("store.prune.within")
        hit("store.prune.after")
        return dropped, len(dropped) == PRUNED_AT_ONCE

    def prune_journal(self, *, before_at: float, up_to_seq: int, last_seq: int) -> None:
        """Drop the oldest entries up to the first one that is not older, and up to a place."""
        connection = self._writable()
        with transaction(connection):
            kept = connection.execute(
                "SELECT seq FROM journal WHERE at >= ? ORDER BY seq LIMIT 1", (before_at,)
            ).fetchone()
            _put(connection, "meta", ("last_seq", str(last_seq)))
            first = max(kept[0] if kept else last_seq + 1, up_to_seq + 1)
            connection.execute("DELETE FROM journal WHERE seq < ?", (first,))
            hit("store.prune_journal.within")
        hit("store.prune_journal.after")

    def prune_hours(self, *, before: str) -> None:
        connection = self._writable()
        with transaction(connection):
            connection.execute("DELETE FROM hours WHERE name < ?", (before,))

    def checkpoint(self) -> None:
        """
        Bring what lies in the log into the file.

        The log keeps its content: a copy of both made meanwhile, the file first, is complete.
        Source: wal_checkpoint PASSIVE, sqlite.org/pragma.html.
        """
        if self._connection is not None and self._is_writable:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _writable(self) -> sqlite3.Connection:
        if self._is_closed:
            raise OSError("it was closed")
        if self._connection is not None and self._is_writable:
            if _identity(self.path) != self._file:
                raise Removed(
                    "it was removed or replaced while the daemon runs; what is still known of it"
                    f" is in the daemon's memory ({self.path.name})"
                )
            return self._connection
        connection = open_again(self.path)
        if not self._is_known:
            (openings,) = connection.execute(
                "SELECT value FROM meta WHERE key = 'openings'"
            ).fetchone()
            if int(openings) > 1:
                connection.close()
                raise OSError(
                    "it holds records of an earlier run that could not be read at the start:"
                    " restart the daemon"
                )
        if self._connection is not None:
            self._connection.close()
        self._connection, self._is_writable, self._is_known = connection, True, True
        self._file = _identity(self.path)
        return connection

    # Reading.

    def delegations_by_key(
        self, delegations: Iterable[str], requests: Iterable[str]
    ) -> list[Delegation]:
        """Delegations that exist among the given ids and request ids."""
        found: list[Delegation] = []
        for delegation in delegations:
            found += self._delegations("delegation = ?", (delegation,))
        for request_id in requests:
            newest = "request_id = ? ORDER BY created_at DESC, delegation DESC LIMIT 1"
            found += self._delegations(newest, (request_id,))
        return found

    def delegation_ids(self) -> set[str]:
        if self._connection is None:
            return set()
        return {name for (name,) in self._connection.execute("SELECT delegation FROM delegations")}

    def newest_delegations(self, wanted: Selection, *, limit: int) -> list[Delegation]:
        at = "ended_at" if wanted.is_ended else "created_at"
        where, values = ["1"], list[str | float]()
        if wanted.is_ended is not None:  # written out, so that an index on part of the rows fits
            where.append(f"is_ended = {int(wanted.is_ended)}")
        for test, value in (
            ("session = ?", wanted.session),
            ("state = ?", wanted.state),
            (f"{at} >= ?", wanted.since_at),
        ):
            if value is not None:
                where.append(test)
                values.append(value)
        if wanted.prefix:
            where.append("delegation >= ? AND delegation < ?")
            values += (wanted.prefix, wanted.prefix + chr(MAX_CODE_POINT))
        if wanted.before is not None:
            where.append(f"({at}, delegation) < (?, ?)")
            values += wanted.before
        order = f" ORDER BY {at} DESC, delegation DESC LIMIT ?"
        return self._delegations(" AND ".join(where) + order, (*values, limit))

    def story(self, delegation: DelegationId) -> list[bytes]:
        if self._connection is None:
            return []
        rows = self._connection.execute(
            "SELECT record FROM stories WHERE delegation = ? ORDER BY place", (delegation,)
        )
        return [data for (data,) in rows]

    def journal(self, *, after_seq: int, limit: int) -> list[tuple[int, bytes]]:
        if self._connection is None:
            return []
        return self._connection.execute(
            "SELECT seq, record FROM journal WHERE seq > ? ORDER BY seq LIMIT ?",
            (after_seq, limit),
        ).fetchall()

    def _delegations(self, where: str, values: Sequence[str | float]) -> list[Delegation]:
        if self._connection is None:
            return []
        rows = self._connection.execute(
            f"SELECT delegation, record FROM delegations WHERE {where}",  # noqa: S608
            values,
        )
        return decoded(Delegation, rows)


def read_hours(path: Path, since: str, unwritten: Mapping[str, Value]) -> Iterator[HourUse]:
    """
    The hours from a name on, over a connection that reads only: it may be used by any thread.

    Args:
        unwritten: Records by name that are not in the file yet, or are newer there.
    """
    with closing(connect(path, "mode=ro")) as connection:
        for name, data in connection.execute(
            "SELECT name, record FROM hours WHERE name >= ? ORDER BY name", (since,)
        ):
            if name not in unwritten:
                yield from decoded(HourUse, [(name, data)])
    for name, found in sorted(unwritten.items()):
        assert isinstance(found, bytes)
        yield from decoded(HourUse, [(name, found)])


def _put(connection: sqlite3.Connection, table: str, row: tuple[Value, ...]) -> None:
    for statement in PUT[table]:
        if connection.execute(statement, row).rowcount:
            return


def decoded(kind: type[RecordT], rows: Iterable[tuple[object, bytes]]) -> list[RecordT]:
    """Records by (key, bytes); one that cannot be read is left out and said."""
    good: list[RecordT] = []
    for key, data in rows:
        try:
            good.append(decode(data, kind))
        except Undecodable as error:
            warn("record.unreadable", kind=kind.__name__, key=key, why=str(error))
    return good


def _without(path: Path, error: Exception, *, now: float) -> Opened:
    """A new database in place of one that turned out to be unreadable."""
    if isinstance(error, sqlite3.Error) and not is_damage(error):
        return Opened(None, error, ())
    try:
        set_aside = put_aside(path, now=now)
    except OSError as refused:
        return Opened(None, refused, ())
    return open_database(path, now=now)._replace(set_aside=set_aside)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
