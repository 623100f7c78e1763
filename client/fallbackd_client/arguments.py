"""
Keyword arguments of the convenience methods of both clients, for type checkers and editors.

The same fields as the params on the wire, without the names of older callers; a test compares
them. Each is described in `wire.methods` and in the RPC reference.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from fallbackd_client.wire.bounds import Mode, OnPartial, Permissions, WaitFor
from fallbackd_client.wire.methods.callers import Lease
from fallbackd_client.wire.methods.delegations import ChainEntry
from fallbackd_client.wire.shapes import Evidence, TokenUsage

Chain = str | Sequence[str | ChainEntry]
ReportOutcome = Literal["success", "failure", "released"]


class DelegateArguments(TypedDict, total=False):
    backend: str | None
    role: str | None
    chain: Chain | None
    session: str | None
    cwd: str | None
    model: str | None
    mode: Mode | None
    wait: WaitFor
    settle_s: float | None
    wait_s: float | None
    strict_wait: bool
    queue: bool
    timeout_s: float | None
    request_id: str | None
    failover: bool
    fresh: bool
    on_partial: OnPartial | None
    allow_metered: bool
    differs_from: Sequence[str]
    permissions: Permissions | None
    env: dict[str, str] | None
    when_available: bool
    wait_for_s: float | None
    wait_until_at: float | None
    not_before_at: float | None
    not_before_s: float | None
    priority: int
    orphan_s: float | None
    metadata: dict[str, Any] | None  # the caller's own JSON


class ResolveArguments(TypedDict, total=False):
    session: str | None
    role: str | None
    backend: str | None
    chain: Chain | None
    model: str | None
    prompt_tokens: int | None
    differs_from: Sequence[str]
    allow_metered: bool
    lease: bool
    owner: str | None


class PrepareArguments(TypedDict, total=False):
    backend: str | None
    role: str | None
    chain: Chain | None
    session: str | None
    cwd: str | None
    model: str | None
    permissions: Permissions | None
    allow_metered: bool


class ReportArguments(TypedDict, total=False):
    session: str | None
    model: str | None
    credential: str | None
    attempt: str | None
    lease: str | Lease | None
    turn: str | None
    next_lease: bool
    role: str | None
    chain: Chain | None
    prompt_tokens: int | None
    differs_from: Sequence[str]
    allow_metered: bool
    owner: str | None
    started_at: float | None
    evidence: Evidence | None
    prompt: str
    usage: TokenUsage | None


class StatusArguments(TypedDict, total=False):
    session: str | None
    verbose: bool
    programs: bool
