"""The kinds of backends that this daemon knows."""

from fallbackd.backends import (
    anthropic_http,
    claude_cli,
    codex_cli,
    gemini_cli,
    generic_cli,
    google_http,
    hermes_http,
    numasec_cli,
    openai_http,
    opencode_cli,
    openrouter_http,
)
from fallbackd.backends.http_calls import Endpoint
from fallbackd.backends.signatures import ONLY_READ
from fallbackd.backends.spec import BackendKind
from fallbackd.classify.rules import Rule

_ALL: tuple[BackendKind, ...] = (
    anthropic_http.KIND,
    claude_cli.KIND,
    codex_cli.KIND,
    gemini_cli.KIND,
    generic_cli.KIND,
    google_http.KIND,
    hermes_http.KIND,
    numasec_cli.KIND,
    openai_http.KIND,
    opencode_cli.KIND,
    openrouter_http.KIND,
)

KINDS: dict[str, BackendKind] = {kind.name: kind for kind in _ALL}

ENDPOINTS: dict[str, Endpoint] = {
    "anthropic-http": anthropic_http.ENDPOINT,
    "google-http": google_http.ENDPOINT,
    "hermes-api": hermes_http.ENDPOINT,
    "openai-http": openai_http.ENDPOINT,
    "openrouter-http": openrouter_http.ENDPOINT,
}
"""The kinds that are spoken to over HTTP, and where they are when nothing is configured."""

SIGNATURES: dict[str, tuple[Rule, ...]] = {
    **ONLY_READ,
    **{kind.name: kind.rules for kind in _ALL},
}
"""Failure signatures by kind; the common ones follow behind them."""


def signatures_of(kind: str) -> tuple[Rule, ...]:
    """None of its own for a kind that is not known."""
    return SIGNATURES.get(kind, ())
