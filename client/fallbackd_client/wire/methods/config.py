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
    """The configuration in effect, built-in profiles included."""
    path: str | None = None
    """The file it was read from; null: none."""
    loaded_at: float | None = None
    """When it was read."""
    errors: tuple[ConfigProblem, ...] = ()
    """Errors of the file on disk, if it was not taken."""
    warnings: tuple[ConfigProblem, ...] = ()
    """Warnings about the configuration in effect."""


CONFIG_GET: Method[ConfigGetParams, ConfigGetResult] = Method(
    "config.get",
    params=ConfigGetParams,
    result=ConfigGetResult,
    read_only=True,
    who="person",
    summary="The configuration in effect.",
    example=(
        {},
        {
            "path": "/home/me/.config/fallbackd/config.toml",
            "loaded_at": 1767268800.0,
            "config": {"chains": {"codex": ["opencode"]}},
        },
    ),
)


class ConfigCheckParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: DirectoryPath | None = None
    """File to check; null: the daemon's own."""
    text: str | None = None
    """Text to check instead of a file."""
    directory: DirectoryPath | None = None
    """An opencode project whose files are checked as well; without `path` and `text`."""


class ConfigCheckResult(Struct, frozen=True, kw_only=True):
    ok: bool
    """There are no errors."""
    path: str | None = None
    """The file that was checked."""
    errors: tuple[ConfigProblem, ...] = ()
    """What makes it, or a backend in it, unusable."""
    warnings: tuple[ConfigProblem, ...] = ()
    """What is ignored or replaced by a default."""


CONFIG_CHECK: Method[ConfigCheckParams, ConfigCheckResult] = Method(
    "config.check",
    params=ConfigCheckParams,
    result=ConfigCheckResult,
    read_only=True,
    who="person",
    summary="What is wrong with a configuration.",
    example=(
        {"text": "[defaults]\nsettle_s = 99\n"},
        {
            "ok": True,
            "warnings": [
                {
                    "path": "defaults.settle_s",
                    "message": "99: must be a number from 0 to 60; the default 5 is used.",
                }
            ],
        },
    ),
)


class ConfigImportParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: DirectoryPath | None = None
    """A Hermes `config.yaml`; null: the `JKZ_*` variables."""
    env: dict[str, str] | None = None
    """The caller's `JKZ_*` variables; null: the daemon's. Values of keys are not used."""
    write: bool = False
    """Append it to the configuration file in use; false: only show it."""


class ImportTaken(Struct, frozen=True, kw_only=True):
    what: str
    """A key or variable of the other program."""
    to: str
    """What it became here."""


class ImportLeft(Struct, frozen=True, kw_only=True):
    what: str
    """A key or variable of the other program."""
    why: str
    """Why it was not taken."""


class ConfigImportResult(Struct, frozen=True, kw_only=True):
    source: str
    """What was read."""
    toml: str
    """The configuration to add; empty: there is nothing to take."""
    taken: tuple[ImportTaken, ...] = ()
    """What was taken."""
    left: tuple[ImportLeft, ...] = field(default=())
    """What was not taken."""
    written: str | None = None
    """The file that it was appended to."""


CONFIG_IMPORT: Method[ConfigImportParams, ConfigImportResult] = Method(
    "config.import",
    params=ConfigImportParams,
    result=ConfigImportResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining", "config_invalid"),
    summary="Take over the configuration of another program.",
    example=({"env": {"JKZ_CODEX_MODEL": "gpt-5.3"}}, {"source": "JKZ_* variables", "toml": ""}),
)


class ConfigReloadParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ConfigReloadResult(Struct, frozen=True, kw_only=True):
    changed: bool
    """The configuration in effect is another one now."""
    path: str | None = None
    """The file that was read."""
    warnings: tuple[ConfigProblem, ...] = ()
    """Warnings about it."""


CONFIG_RELOAD: Method[ConfigReloadParams, ConfigReloadResult] = Method(
    "config.reload",
    params=ConfigReloadParams,
    result=ConfigReloadResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining", "config_invalid"),
    summary="Read the configuration again; an invalid one leaves the last good one in force.",
    example=({}, {"changed": True, "path": "/home/me/.config/fallbackd/config.toml"}),
)


METHODS = (
    CONFIG_GET,
    CONFIG_CHECK,
    CONFIG_IMPORT,
    CONFIG_RELOAD,
)
