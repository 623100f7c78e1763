"""`delegation.log`: a piece of the recorded output of one attempt."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import Name, Offset
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Its id, or its number; null: the last one."""
    offset: Offset = 0
    max_bytes: Annotated[int, Meta(ge=1, le=1048576)] | None = None
    """Never cuts a character: one that is longer than this comes whole."""


class Result(Struct, frozen=True, kw_only=True):
    """Ask again from `next_offset`. All is read when `ended` and `next_offset == size_bytes`."""

    delegation: str
    text: str
    """UTF-8; bytes that are none are replaced. Offsets count the recorded bytes."""
    offset: int
    next_offset: int
    size_bytes: int
    ended: bool
    """The attempt has ended, or the delegation without any: the log grows no more."""
    attempt: str | None = None
    """Null where no attempt has started."""
    log_path: str | None = None


METHOD: Method[Params, Result] = Method(
    "delegation.log",
    params=Params,
    result=Result,
    read_only=True,
    summary="A piece of the recorded output of one attempt.",
)
