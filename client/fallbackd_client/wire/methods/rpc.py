"""The contract about itself."""

from typing import Any

from msgspec import Struct

from fallbackd_client.wire.envelope import Method

RpcDiscoverResult = dict[str, Any]
"""OpenRPC 1.3; `Any` because its schema is that specification's, not ours."""


class RpcDiscoverParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


RPC_DISCOVER: Method[RpcDiscoverParams, RpcDiscoverResult] = Method(
    "rpc.discover",
    params=RpcDiscoverParams,
    result=RpcDiscoverResult,
    read_only=True,
    who="any",
    summary="All methods as an OpenRPC document.",
    example=(
        {},
        {"openrpc": "1.3.2", "info": {"title": "fallbackd", "version": "0.2.0"}, "methods": []},
    ),
)


METHODS = (RPC_DISCOVER,)
