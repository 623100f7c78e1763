"""`config.import`: what the configuration of another program becomes here."""

from msgspec import Struct, field

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: DirectoryPath | None = None
    """Of a Hermes `config.yaml`. Null: the `JKZ_*` variables."""
    env: dict[str, str] | None = None
    """`JKZ_*` variables of the caller; null: those of the daemon. Values of keys are not used."""
    write: bool = False
    """Put it behind the configuration file that is in use. False: only show it."""


class ImportTaken(Struct, frozen=True, kw_only=True):
    what: str
    """A key or a variable of the other program."""
    to: str


class ImportLeft(Struct, frozen=True, kw_only=True):
    what: str
    why: str


class Result(Struct, frozen=True, kw_only=True):
    source: str
    toml: str
    """Empty: there is nothing to take."""
    taken: tuple[ImportTaken, ...] = ()
    left: tuple[ImportLeft, ...] = field(default=())
    written: str | None = None
    """The file that it was put into."""


METHOD: Method[Params, Result] = Method(
    "config.import",
    params=Params,
    result=Result,
    read_only=False,
    summary="Take over the configuration of another program.",
)
