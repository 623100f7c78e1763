"""
Records to bytes and back.

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
