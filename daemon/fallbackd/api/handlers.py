"""Every method that is served, whatever the protocol."""

from typing import Any

from fallbackd.api import (
    callers,
    daemon,
    delegations,
    explaining,
    health,
    opencode,
    signatures,
    stats,
    usage,
)
from fallbackd.api.handler import Handler

HANDLERS: tuple[Handler[Any, Any], ...] = (  # each of its own types, so `Any` for all together
    *callers.HANDLERS,
    *daemon.HANDLERS,
    *delegations.HANDLERS,
    *explaining.HANDLERS,
    *health.HANDLERS,
    *opencode.HANDLERS,
    *signatures.HANDLERS,
    *stats.HANDLERS,
    *usage.HANDLERS,
)
