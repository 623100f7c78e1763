"""`session.end`: forget a session."""

from msgspec import Struct

from fallbackd_client.wire.bounds import SessionName
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName


class Result(Struct, frozen=True, kw_only=True):
    session: str
    ended: bool
    """True; an unknown session is an error."""


METHOD: Method[Params, Result] = Method(
    "session.end",
    params=Params,
    result=Result,
    read_only=False,
    summary="Forget a session.",
)
