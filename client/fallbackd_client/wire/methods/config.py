"""The configuration: what is in effect, checked, imported, read again."""

from typing import Any

from msgspec import Struct, field

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import ConfigProblem


class ConfigGetParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ConfigGetResult(Struct, frozen=True, kw_only=True):
    config: dict[str, Any] = field(default_factory=dict)  # as in the file, profiles included
    path: str | None = None
    loaded_at: float | None = None
    errors: tuple[ConfigProblem, ...] = ()
    """Of the file on disk, where it was not taken."""
    warnings: tuple[ConfigProblem, ...] = ()


CONFIG_GET: Method[ConfigGetParams, ConfigGetResult] = Method(
    "config.get",
    params=ConfigGetParams,
    result=ConfigGetResult,
    read_only=True,
    summary="The configuration in effect.",
)


class ConfigCheckParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: DirectoryPath | None = None
    """Null: the daemon's own."""
    text: str | None = None
    """The text itself instead of a file."""
    directory: DirectoryPath | None = None
    """Without `path` and `text`: of an opencode project whose files are checked as well."""


class ConfigCheckResult(Struct, frozen=True, kw_only=True):
    ok: bool
    path: str | None = None
    errors: tuple[ConfigProblem, ...] = ()
    warnings: tuple[ConfigProblem, ...] = ()


CONFIG_CHECK: Method[ConfigCheckParams, ConfigCheckResult] = Method(
    "config.check",
    params=ConfigCheckParams,
    result=ConfigCheckResult,
    read_only=True,
    summary="What is wrong with a configuration.",
)


class ConfigImportParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class ConfigImportResult(Struct, frozen=True, kw_only=True):
    source: str
    toml: str
    """Empty: there is nothing to take."""
    taken: tuple[ImportTaken, ...] = ()
    left: tuple[ImportLeft, ...] = field(default=())
    written: str | None = None
    """The file that it was put into."""


CONFIG_IMPORT: Method[ConfigImportParams, ConfigImportResult] = Method(
    "config.import",
    params=ConfigImportParams,
    result=ConfigImportResult,
    read_only=False,
    summary="Take over the configuration of another program.",
)


class ConfigReloadParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ConfigReloadResult(Struct, frozen=True, kw_only=True):
    changed: bool
    path: str | None = None
    warnings: tuple[ConfigProblem, ...] = ()


CONFIG_RELOAD: Method[ConfigReloadParams, ConfigReloadResult] = Method(
    "config.reload",
    params=ConfigReloadParams,
    result=ConfigReloadResult,
    read_only=False,
    summary="Read the configuration again; a bad one keeps the last good one.",
)


METHODS = (
    CONFIG_GET,
    CONFIG_CHECK,
    CONFIG_IMPORT,
    CONFIG_RELOAD,
)
