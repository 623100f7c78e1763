"""`config.reload`: read the configuration again. A bad one is -32006, the last good one stays."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import ConfigProblem


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Result(Struct, frozen=True, kw_only=True):
    changed: bool
    path: str | None = None
    warnings: tuple[ConfigProblem, ...] = ()


METHOD: Method[Params, Result] = Method(
    "config.reload",
    params=Params,
    result=Result,
    read_only=False,
    summary="Read the configuration again; a bad one keeps the last good one.",
)
