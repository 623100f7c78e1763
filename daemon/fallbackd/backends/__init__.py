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
from fallbackd.backends.signatures import ONLY_READ
from fallbackd.backends.spec import BackendKind
from fallbackd.core.rules import Rule

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

SIGNATURES: dict[str, tuple[Rule, ...]] = {
    **ONLY_READ,
    **{kind.name: kind.rules for kind in _ALL},
}
"""Failure signatures by kind; the common ones follow behind them."""


def signatures_of(kind: str) -> tuple[Rule, ...]:
    """None of its own for a kind that is not known."""
    return SIGNATURES.get(kind, ())
