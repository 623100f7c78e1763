"""
Records to bytes and back, and the shape of the database through its versions.

A record is JSON. Fields that a record has and its type has not are ignored, fields that are
missing take their default, so most changes of a record need no migration.
"""

import json
from typing import TypeVar

import msgspec

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
)
"""The n-th brings a database of version n to version n + 1; 0 is an empty file."""

SCHEMA_VERSION = len(MIGRATIONS)
