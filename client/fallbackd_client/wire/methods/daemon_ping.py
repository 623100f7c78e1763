"""`daemon.ping`: is somebody there."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Result(Struct, frozen=True, kw_only=True):
    version: str
    pid: int
    at: float
    state: str = "running"
    """running, draining."""


METHOD: Method[Params, Result] = Method(
    "daemon.ping",
    params=Params,
    result=Result,
    read_only=True,
    summary="Is somebody there, and who.",
)
