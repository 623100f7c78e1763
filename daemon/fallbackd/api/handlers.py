"""Every method that is served, whatever the protocol."""

from typing import Any

from fallbackd.api import (
    callers,
    config,
    daemon,
    delegations,
    events,
    exchanges,
    explaining,
    health,
    interactive,
    notify,
    opencode,
    questions,
    sessions,
    share,
    signatures,
    usage,
)
from fallbackd.api.handler import Handler

HANDLERS: tuple[Handler[Any, Any], ...] = (  # each of its own types, so `Any` for all together
    *callers.HANDLERS,
    *config.HANDLERS,
    *daemon.HANDLERS,
    *delegations.HANDLERS,
    *events.HANDLERS,
    *exchanges.HANDLERS,
    *explaining.HANDLERS,
    *health.HANDLERS,
    *interactive.HANDLERS,
    *notify.HANDLERS,
    *opencode.HANDLERS,
    *questions.HANDLERS,
    *sessions.HANDLERS,
    *share.HANDLERS,
    *signatures.HANDLERS,
    *usage.HANDLERS,
)
