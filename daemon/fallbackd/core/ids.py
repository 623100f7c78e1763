"""Names of things. Ids are minted at the edge and arrive in events."""

from typing import NewType

BackendId = NewType("BackendId", str)
"""`codex`, or `provider/model` for a model that an opencode installation serves."""

SessionId = NewType("SessionId", str)
"""The caller's conversation, by the id that the caller gives: 1 to 200 printable characters."""

DelegationId = NewType("DelegationId", str)
AttemptId = NewType("AttemptId", str)
"""`<delegation>.<n>`, n from 1. The fencing token: a late result carries an old one."""

ScopeId = NewType("ScopeId", str)
"""`backend:ID`, `provider:HOST`, `quota:GROUP`, `credential:ID/LABEL`, `model:ID/MODEL`, …"""


LEASE_PREFIX = "lease-"
"""Begins the name of a lease that a caller holds: an `AttemptId` of no delegation."""


def is_lease(name: str) -> bool:
    return name.startswith(LEASE_PREFIX)


def attempt_id(delegation: DelegationId, number: int) -> AttemptId:
    return AttemptId(f"{delegation}.{number}")


def delegation_of(attempt: AttemptId) -> DelegationId:
    return DelegationId(attempt.rpartition(".")[0])


def attempt_number(attempt: AttemptId) -> int:
    return int(attempt.rpartition(".")[2])
