"""Availability, failovers and cost over time."""

from typing import Annotated

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import Instant
from fallbackd_client.wire.envelope import Method


class StatsParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    since_at: Instant | None = None
    """Default: seven days ago. Hours are kept for a year."""
    until_at: Instant | None = None
    """Default: now."""
    buckets: Annotated[int, Meta(ge=1, le=400)] = 60
    """Number of equal parts into which the time is divided for what is shown along it."""


class BackendStats(Struct, frozen=True, kw_only=True):
    backend: str
    """Its name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each state. `stopped`: no daemon ran. Time of which nothing is known is in none."""
    availability: float | None = None
    """Share of the known time in which it could be used, 0 to 1. Null: nothing is known."""
    calls: int = 0
    """Calls that have ended: attempts of delegations, and calls through the gateway."""
    answered: int = 0
    """Number of them that succeeded."""
    failed: int = 0
    """Number of them that failed."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Failed calls by reason."""
    mean_s: float | None = None
    """Mean time of an answered call. Null: none was answered."""
    longest_s: float = 0.0
    """Longest time of an answered call."""
    input_tokens: int = 0
    """Tokens of prompts."""
    output_tokens: int = 0
    """Tokens of answers."""
    cost_usd: float | None = None
    """Cost in US dollars. Null: it was never stated."""
    strip: tuple[str, ...] = ()
    """The worst state in each part of the time; empty: nothing is known of it."""
    calls_by: tuple[int, ...] = ()
    """Calls by part of the time."""
    failed_by: tuple[int, ...] = ()
    """Failed calls by part of the time."""
    mean_s_by: tuple[float | None, ...] = ()
    """Mean time of an answered call by part of the time."""
    plan_by: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Highest used percentage of each window of its plan by part of the time."""


class ChainStats(Struct, frozen=True, kw_only=True):
    chain: str
    """Its name, as in the configuration."""
    backends: tuple[str, ...]
    """Backends of the chain of which something is known."""
    seconds: float
    """Time of which something is known."""
    availability: float | None = None
    """Share of that time in which at least one backend could be used. Null: nothing is known."""


class OutageRow(Struct, frozen=True, kw_only=True):
    backend: str
    """The backend that was out."""
    state: str
    """State that it was in."""
    reason: str | None = None
    """Reason of that, where there is one."""
    began_at: float
    """Time when it began, or that of the report."""
    ended_at: float | None = None
    """Null: it lasts."""


class FailoverRow(Struct, frozen=True, kw_only=True):
    left: str
    """The backend that was left."""
    to: str
    """The backend that was used instead."""
    reason: str
    """Reason for leaving it."""
    count: int
    """Number of times."""


class ShareRow(Struct, frozen=True, kw_only=True):
    name: str
    """Empty: none was named."""
    requests: int = 0
    """Requests that have ended."""
    answered: int = 0
    """Number of them that were answered."""
    rescued: int = 0
    """Answered by another backend than the one that was asked."""
    input_tokens: int = 0
    """Tokens of prompts."""
    output_tokens: int = 0
    """Tokens of answers."""
    cost_usd: float | None = None
    """Cost in US dollars. Null: it was never stated."""


class StatsResult(Struct, frozen=True, kw_only=True):
    since_at: float
    """Beginning of the time that was added up."""
    until_at: float
    """End of it."""
    bucket_s: float
    """Length of one part of the time."""
    hours: int = 0
    """Number of records that were added up, one for each hour and backend."""
    known_since_at: float | None = None
    """Beginning of the oldest of them. Null: there is none."""
    requests: int = 0
    """Delegations that have ended, and calls through the gateway."""
    answered: int = 0
    """Number of them that were answered."""
    rescued: int = 0
    """Answered by another backend than the one that was asked: an outage did not stop them."""
    backends: tuple[BackendStats, ...] = ()
    """Backends that were called."""
    chains: tuple[ChainStats, ...] = ()
    """Configured chains."""
    outages: tuple[OutageRow, ...] = ()
    """Newest first, at most 200."""
    outages_total: int = 0
    """All outages of the time."""
    failovers: tuple[FailoverRow, ...] = ()
    """Most frequent first."""
    roles: tuple[ShareRow, ...] = ()
    """Most requests first, at most 50."""
    projects: tuple[ShareRow, ...] = ()
    """Shares by directory; most requests first, at most 50."""


STATS: Method[StatsParams, StatsResult] = Method(
    "stats",
    params=StatsParams,
    result=StatsResult,
    read_only=True,
    who="person",
    errors=("busy",),
    summary="Availability, outages, failovers, calls and cost over time.",
    example=(
        {"since_at": 1767225600.0, "buckets": 2},
        {
            "since_at": 1767225600.0,
            "until_at": 1767232800.0,
            "bucket_s": 3600.0,
            "hours": 2,
            "known_since_at": 1767225600.0,
            "requests": 12,
            "answered": 12,
            "rescued": 3,
            "backends": [
                {
                    "backend": "codex",
                    "seconds": {"healthy": 5400.0, "rate_limited": 1800.0},
                    "availability": 0.75,
                    "calls": 10,
                    "answered": 9,
                    "failed": 1,
                    "reasons": {"usage_limit": 1},
                    "mean_s": 21.5,
                    "longest_s": 64.0,
                    "input_tokens": 120000,
                    "output_tokens": 9000,
                    "strip": ["healthy", "rate_limited"],
                    "calls_by": [8, 2],
                    "failed_by": [0, 1],
                    "mean_s_by": [20.0, 33.5],
                    "plan_by": {"5h": [62.0, 100.0]},
                }
            ],
            "outages": [
                {
                    "backend": "codex",
                    "state": "rate_limited",
                    "reason": "usage_limit",
                    "began_at": 1767230000.0,
                    "ended_at": 1767231800.0,
                }
            ],
            "outages_total": 1,
            "failovers": [{"left": "codex", "to": "claude", "reason": "usage_limit", "count": 3}],
        },
    ),
)


METHODS = (STATS,)
