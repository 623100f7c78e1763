"""`config.get`: the configuration in effect."""

from typing import Any

from msgspec import Struct, field

from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import ConfigProblem


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Result(Struct, frozen=True, kw_only=True):
    config: dict[str, Any] = field(default_factory=dict)  # as in the file, profiles included
    path: str | None = None
    loaded_at: float | None = None
    errors: tuple[ConfigProblem, ...] = ()
    """Of the file on disk, where it was not taken."""
    warnings: tuple[ConfigProblem, ...] = ()


METHOD: Method[Params, Result] = Method(
    "config.get",
    params=Params,
    result=Result,
    read_only=True,
    summary="The configuration in effect.",
)
