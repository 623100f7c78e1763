"""The kinds of backends that this daemon knows."""

from fallbackd.backends import (
    claude_cli,
    codex_cli,
    gemini_cli,
    generic_cli,
    hermes_http,
    numasec_cli,
    opencode_cli,
)
from fallbackd.backends.spec import BackendKind

_ALL: tuple[BackendKind, ...] = (
    claude_cli.KIND,
    codex_cli.KIND,
    gemini_cli.KIND,
    generic_cli.KIND,
    hermes_http.KIND,
    numasec_cli.KIND,
    opencode_cli.KIND,
)

KINDS: dict[str, BackendKind] = {kind.name: kind for kind in _ALL}
