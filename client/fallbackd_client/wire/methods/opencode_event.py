"""`opencode.event`: a plugin passes on what has happened in its opencode."""

from typing import Any

from msgspec import Struct

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    event: dict[str, Any]  # any JSON
    """`{id, type, properties}`, as opencode has it."""
    directory: DirectoryPath | None = None


class Result(Struct, frozen=True, kw_only=True):
    heard: bool
    """False: this connection is not followed; announce it with `opencode.announce`."""


METHOD: Method[Params, Result] = Method(
    "opencode.event",
    params=Params,
    result=Result,
    read_only=False,
    summary="A plugin of opencode passes on an event of its sessions.",
)
