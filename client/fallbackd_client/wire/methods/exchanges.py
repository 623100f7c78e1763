"""Calls that the gateway answered for programs."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import TokenUsage


class Exchange(Struct, frozen=True, kw_only=True):
    """One call of a program through the gateway."""

    exchange: str
    """Its id, which `explain` takes."""
    api: str
    """chat_completions, responses, messages or generate_content."""
    state: str
    """running, succeeded, failed, or cancelled by its caller."""
    began_at: float
    """When it came in."""
    asked: str | None = None
    """The model that it named; of a long name the first 200 characters."""
    asked_by: str | None = None
    """The attempt from inside which it came; null: a person's program made it."""
    requested: str | None = None
    """The backend that comes first for it."""
    served_by: str | None = None
    """The backend that answered."""
    model: str | None = None
    """The model that answered."""
    reason: str | None = None
    """Why the first backend did not answer, or was not asked."""
    usage: TokenUsage = TokenUsage()
    """What its answer used, as far as the provider said it."""
    calls: int = 0
    """Requests to backends that were made for it."""
    ended_at: float | None = None
    """When its answer was complete, or was given up."""


class ExchangeListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    limit: CountLimit | None = None
    """At most so many; default 50."""


class ExchangeListResult(Struct, frozen=True, kw_only=True):
    exchanges: tuple[Exchange, ...] = ()
    """Newest first; the last 500 since the start of the daemon are known."""
    known: int = 0
    """How many are known."""


EXCHANGE_LIST: Method[ExchangeListParams, ExchangeListResult] = Method(
    "exchange.list",
    params=ExchangeListParams,
    result=ExchangeListResult,
    read_only=True,
    who="person",
    summary="The last calls that the gateway answered, without what was asked or said.",
    example=(
        {"limit": 1},
        {
            "exchanges": [
                {
                    "exchange": "ex-d19fb0c9a1e2f4a7c3b5",
                    "api": "messages",
                    "state": "succeeded",
                    "began_at": 1763890000.0,
                    "asked": "team",
                    "requested": "anthropic",
                    "served_by": "other",
                    "model": "m",
                    "reason": "rate_limit",
                    "usage": {"input_tokens": 1200, "output_tokens": 80},
                    "calls": 2,
                    "ended_at": 1763890002.5,
                }
            ],
            "known": 12,
        },
    ),
)

METHODS = (EXCHANGE_LIST,)
