"""`daemon.drain`: take no new work, let running work end."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Result(Struct, frozen=True, kw_only=True):
    state: str = "draining"
    running: int = 0
    """Delegations that have not ended."""


METHOD: Method[Params, Result] = Method(
    "daemon.drain",
    params=Params,
    result=Result,
    read_only=False,
    summary="Take no new work, let running work end.",
)
