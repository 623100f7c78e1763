"""Every method that works, sorted by name. Each noun has a module, with its methods last."""

from typing import Any

from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods import (
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
    rpc,
    sessions,
    share,
    signatures,
    stats,
    usage,
)

NOUNS = (
    callers, config, daemon, delegations, events, exchanges, explaining, health,
    interactive, notify, opencode, questions, rpc, sessions, share, signatures, stats, usage,
)  # fmt: skip

METHODS: tuple[Method[Any, Any], ...] = tuple(  # each of its own types, so `Any` for all together
    sorted((one for noun in NOUNS for one in noun.METHODS), key=lambda one: one.name)
)
