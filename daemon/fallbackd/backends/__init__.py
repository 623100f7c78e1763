"""The kinds of backends that this daemon knows."""

from fallbackd.backends import codex_cli, generic_cli
from fallbackd.backends.spec import BackendKind

_ALL: tuple[BackendKind, ...] = (
    codex_cli.KIND,
    generic_cli.KIND,
)

KINDS: dict[str, BackendKind] = {kind.name: kind for kind in _ALL}
