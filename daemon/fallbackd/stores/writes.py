"""
Rows that are to be written: encoded once, a later one in place of an earlier one.

A record is JSON. Fields that a record has and its type has not are ignored, fields that are
missing take their default, so most changes of a record need no migration.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fallbackd.core.decision import (
    Change,
    DropSession,
    Note,
    PutDelegation,
    PutFact,
    PutHealth,
    PutHour,
    PutMeter,
    PutSession,
    PutStory,
)

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


class Undecodable(Exception):
    """These bytes are no record of this type: says why."""


def encode(record: msgspec.Struct) -> bytes:
    """
    A name of a file that is no UTF-8 reaches us as lone surrogates, which UTF-8 cannot carry:
    only such a record is written with escapes.
    """
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(record)).encode()


def decode(data: bytes, kind: type[RecordT]) -> RecordT:
    """
    Raises:
        Undecodable: Not JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Undecodable(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        return _decode_escaped(data, kind, error)


def _decode_escaped(data: bytes, kind: type[RecordT], first: Exception) -> RecordT:
    """Lone surrogates again: the fast decoder refuses them."""
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, TypeError) as error:
        raise Undecodable(str(first)) from error


Value = str | bytes | int | float | None

_KEPT: dict[str, tuple[str, ...]] = {
    "health": ("scope",),
    "meters": ("backend",),
    "hours": ("name",),
    "sessions": ("session",),
    "delegations": ("delegation", "session", "request_id", "created_at"),
    "finished": ("state",),
    "facts": ("key",),
    "meta": ("key",),
}
"""Columns by table, the key first, that stay as they are while a row lives, but for rare moves."""
_CHANGED: dict[str, tuple[str, ...]] = {
    "health": ("record",),
    "meters": ("record",),
    "hours": ("record",),
    "sessions": ("record",),
    "delegations": ("state", "is_ended", "ended_at", "record"),
    "finished": ("count",),
    "facts": ("value",),
    "meta": ("value",),
}


def _put(table: str) -> str:
    columns = (*_KEPT[table], *_CHANGED[table])
    places = ", ".join("?" * len(columns))
    return f"REPLACE INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608


def _put_over(table: str, changed: tuple[str, ...]) -> str:
    """Update a row that differs in no other column, so that no other index is written."""
    columns = (*_KEPT[table], *_CHANGED[table])
    at = {name: f"?{place}" for place, name in enumerate(columns, start=1)}
    new = ", ".join(f"{name} = {at[name]}" for name in changed)
    same = " AND ".join(f"{name} IS {at[name]}" for name in columns if name not in changed)
    return f"UPDATE {table} SET {new} WHERE {same}"  # noqa: S608


PUT = {
    table: (
        *dict.fromkeys((_put_over(table, changed[-1:]), _put_over(table, changed))),
        _put(table),
    )
    for table, changed in _CHANGED.items()
}
"""Statements, tried in order until one finds its row. The first writes in no index at all."""
DROP = {"sessions": "DELETE FROM sessions WHERE session = ?"}
ADD_STORY = "INSERT INTO stories (delegation, record) VALUES (?, ?)"
ADD_NOTE = "INSERT INTO journal (seq, at, record) VALUES (?, ?, ?)"


STATEMENTS: tuple[tuple[str, tuple[None, ...]], ...] = (
    *(
        (one, (None,) * len((*_KEPT[table], *_CHANGED[table])))
        for table in PUT
        for one in PUT[table]
    ),
    *((one, (None,)) for one in DROP.values()),
    (ADD_STORY, (None,) * 2),
    (ADD_NOTE, (None,) * 3),
)
"""Every way to write a row, with nothing to write."""


class Writes:
    """
    Rows to write in one transaction.

    Attributes:
        rows: By table and key; None: the row goes.
        stories: (delegation, record), oldest first.
        notes: (seq, at, record), in order.
        outlives_machine: False: they only have to outlive this process.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[Value, ...] | None] = {}
        self.stories: list[tuple[str, bytes]] = []
        self.notes: list[tuple[int, float, bytes]] = []
        self.outlives_machine = True

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.stories or self.notes)

    def count(self, table: str) -> int:
        return sum(1 for kind, _ in self.rows if kind == table)

    def has(self, table: str, key: str) -> bool:
        return (table, key) in self.rows

    def put(self, table: str, *row: Value) -> None:
        """
        Raises:
            UnicodeEncodeError: A key is no text that can be stored. Better now than in a commit
                that others share.
        """
        for value in row:
            if isinstance(value, str):
                value.encode()
        self.rows[table, str(row[0])] = row

    def merge(self, later: "Writes") -> None:
        self.rows.update(later.rows)
        self.stories.extend(later.stories)
        self.notes.extend(later.notes)

    def joined(self, later: "Writes") -> "Writes":
        both = Writes()
        both.merge(self)
        both.merge(later)
        return both


def writes_of(changes: Sequence[Change], *, after_seq: int) -> Writes:
    """The rows of one decision, whose notes come after the place `after_seq` of the journal."""
    writes = Writes()
    for change in changes:
        if type(change) is Note:
            seq = after_seq + len(writes.notes) + 1
            writes.notes.append((seq, change.at, encode(change)))
        else:
            WRITTEN[type(change)](writes, change)
    return writes


def _health(writes: Writes, change: PutHealth) -> None:
    writes.put("health", change.health.scope, encode(change.health))


def _meter(writes: Writes, change: PutMeter) -> None:
    writes.put("meters", change.meter.backend, encode(change.meter))


def hour_name(hour: int, backend: str = "") -> str:
    """The key of an hour. Later ones sort behind earlier ones."""
    return f"{hour:08d} {backend}"


def _hour(writes: Writes, change: PutHour) -> None:
    one = change.hour
    writes.put("hours", hour_name(one.hour, one.backend), encode(one))


def _fact(writes: Writes, change: PutFact) -> None:
    writes.put("facts", change.key, change.value)


def _session(writes: Writes, change: PutSession) -> None:
    writes.put("sessions", change.session.session, encode(change.session))


def _no_session(writes: Writes, change: DropSession) -> None:
    writes.rows["sessions", change.session] = None


def _delegation(writes: Writes, change: PutDelegation) -> None:
    one = change.delegation
    writes.put(
        "delegations",
        one.delegation,
        one.session,
        one.request_id,
        one.created_at,
        one.state,
        int(one.is_ended),
        one.ended_at,
        encode(one),
    )


def _story(writes: Writes, change: PutStory) -> None:
    writes.stories.append((change.delegation, encode(change)))


WRITTEN: Mapping[type, Callable[[Writes, Any], None]] = {
    PutHealth: _health,
    PutMeter: _meter,
    PutHour: _hour,
    PutFact: _fact,
    PutSession: _session,
    DropSession: _no_session,
    PutDelegation: _delegation,
    PutStory: _story,
}
"""Rows by the type of a change; a `Note` also has its place in the journal."""
