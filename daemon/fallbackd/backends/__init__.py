"""The kinds of backends that this daemon knows: listed here, and nowhere else."""

from fallbackd.backends import (
    acp_cli,
    claude_cli,
    codex_cli,
    gemini_cli,
    generic_cli,
    numasec_cli,
    opencode_cli,
)
from fallbackd.backends.http_calls import HTTP_KINDS
from fallbackd.backends.signatures import LATER, ONLY_READ
from fallbackd.backends.spec import BackendKind, Endpoint
from fallbackd.classify.rules import Rule
from fallbackd.core.policy import IN_SESSION_KIND

_ALL: tuple[BackendKind, ...] = (
    acp_cli.KIND,
    claude_cli.KIND,
    codex_cli.KIND,
    gemini_cli.KIND,
    generic_cli.KIND,
    numasec_cli.KIND,
    opencode_cli.KIND,
    *HTTP_KINDS,
)

KINDS: dict[str, BackendKind] = {kind.name: kind for kind in _ALL}

ENDPOINTS: dict[str, Endpoint] = {
    kind.name: kind.endpoint for kind in _ALL if kind.endpoint is not None
}
"""The kinds that are spoken to over HTTP, and where they are when nothing is configured."""

KIND_NAMES = tuple(sorted((*KINDS, IN_SESSION_KIND)))
"""Kinds that `kind = "…"` may name."""

ALIASES = {"generic": generic_cli.KIND.name}

JUDGED = frozenset(ONLY_READ) - KINDS.keys()
"""Kinds that only signatures may name."""

SIGNATURES: dict[str, tuple[Rule, ...]] = {
    IN_SESSION_KIND: (),
    **dict.fromkeys(ALIASES, ()),
    **ONLY_READ,
    **LATER,
    **{kind.name: kind.rules for kind in _ALL},
}
"""Failure signatures by kind; the common ones follow behind them."""
