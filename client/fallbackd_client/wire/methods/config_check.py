"""`config.check`: what is wrong with a configuration. Changes nothing."""

from msgspec import Struct

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import ConfigProblem


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: DirectoryPath | None = None
    """Null: the daemon's own."""
    text: str | None = None
    """The text itself instead of a file."""
    directory: DirectoryPath | None = None
    """Without `path` and `text`: of an opencode project whose files are checked as well."""


class Result(Struct, frozen=True, kw_only=True):
    ok: bool
    path: str | None = None
    errors: tuple[ConfigProblem, ...] = ()
    warnings: tuple[ConfigProblem, ...] = ()


METHOD: Method[Params, Result] = Method(
    "config.check",
    params=Params,
    result=Result,
    read_only=True,
    summary="What is wrong with a configuration.",
)
