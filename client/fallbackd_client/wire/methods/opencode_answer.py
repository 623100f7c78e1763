"""`opencode.answer`: a plugin answers a call that the daemon made through it."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    call: Annotated[int, Meta(ge=1)]
    """Number of the notification `opencode.call`."""
    status: Annotated[int, Meta(ge=0, le=599)]
    """Of HTTP; 0: no answer came."""
    text: str = ""
    """Its JSON, or a piece of it."""
    more: bool = False
    """Another piece follows."""


class Result(Struct, frozen=True, kw_only=True):
    heard: bool


METHOD: Method[Params, Result] = Method(
    "opencode.answer",
    params=Params,
    result=Result,
    read_only=False,
    summary="A plugin of opencode answers a call of the daemon, in one or more pieces.",
)
