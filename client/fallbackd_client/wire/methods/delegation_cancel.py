"""`delegation.cancel`: stop a delegation; returns when it is proven stopped."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation as Result


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name


METHOD: Method[Params, Result] = Method(
    "delegation.cancel",
    params=Params,
    result=Result,
    read_only=False,
    summary="Stop a delegation; returns when it is proven stopped.",
)
