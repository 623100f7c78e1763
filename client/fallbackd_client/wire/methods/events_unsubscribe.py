"""`events.unsubscribe`: end a subscription of this connection."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    subscription: Name


class Result(Struct, frozen=True, kw_only=True):
    ended: bool
    """False: there was none of that name."""


METHOD: Method[Params, Result] = Method(
    "events.unsubscribe",
    params=Params,
    result=Result,
    read_only=False,
    summary="End a subscription of this connection.",
)
