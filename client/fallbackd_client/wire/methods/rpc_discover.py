"""`rpc.discover`: all methods as an OpenRPC document."""

from typing import Any

from msgspec import Struct

from fallbackd_client.wire.envelope import Method

Result = dict[str, Any]
"""OpenRPC 1.3; `Any` because its schema is that specification's, not ours."""


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


METHOD: Method[Params, Result] = Method(
    "rpc.discover",
    params=Params,
    result=Result,
    read_only=True,
    summary="All methods as an OpenRPC document.",
)
