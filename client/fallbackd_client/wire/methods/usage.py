"""Usage, by backend and period."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Instant, Name, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import UsageRow


class UsageParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """Only of this session."""
    backend: Name | None = None
    """Only of this backend."""
    since_at: Instant | None = None
    """With a row for the time since then, in whole days (UTC)."""


class UsageResult(Struct, frozen=True, kw_only=True):
    usage: tuple[UsageRow, ...] = ()
    """One row for each backend and period."""
    warnings: tuple[str, ...] = ()
    """Parameters that had no effect."""


USAGE: Method[UsageParams, UsageResult] = Method(
    "usage",
    params=UsageParams,
    result=UsageResult,
    read_only=True,
    who="person",
    errors=("unknown",),
    summary="What was used, by backend and period.",
    example=(
        {"backend": "codex"},
        {
            "usage": [
                {
                    "backend": "codex",
                    "period": "day",
                    "since_at": 1767268800.0,
                    "attempts": 9,
                    "successes": 8,
                    "failures": 1,
                    "input_tokens": 120000,
                    "output_tokens": 9000,
                    "cost": "subscription",
                }
            ]
        },
    ),
)


METHODS = (USAGE,)
