"""`daemon.shutdown`: drain, then exit. Answered before the daemon goes."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    stop_work: bool = False
    """Cancel what runs. False: wait for its end, and leave what takes longer to the next daemon."""


class Result(Struct, frozen=True, kw_only=True):
    state: str = "draining"
    running: int = 0
    """Delegations that have not ended."""


METHOD: Method[Params, Result] = Method(
    "daemon.shutdown",
    params=Params,
    result=Result,
    read_only=False,
    summary="Drain, then exit.",
)
