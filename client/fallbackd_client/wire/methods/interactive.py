"""Agents that a person has open: their own reports of failures and of their plan."""

from typing import Annotated

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import DirectoryPath, DurationS, Instant, Name, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Failure, HealthEntry

MAX_TEXT = 65_536


class PlanWindow(Struct, frozen=True, kw_only=True):
    """The used part of a subscription within one of its windows."""

    window_s: DurationS
    """Length of the window in seconds, such as 18000 for five hours."""
    used_percent: Annotated[float, Meta(ge=0, le=1000)]
    """How much of it is used, from 0 to 100."""
    resets_at: Instant | None = None
    """When it begins anew; null: not stated."""


class InteractiveFailedParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    agent: Name
    """Kind of the agent, such as `claude`."""
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    """What the agent shows of the failure."""
    error: Name | None = None
    """The agent's own word for it, such as `rate_limit`."""
    home: DirectoryPath | None = None
    """Directory of its login where that is not the usual one; it tells accounts apart."""
    session: SessionName | None = None
    """The agent's id of the conversation."""
    turn: Name | None = None
    """The agent's id of the turn; a failure is counted once for each."""


class InteractiveFailedResult(Struct, frozen=True, kw_only=True):
    backend: str | None = None
    """The configured backend that the agent is; null: none, and nothing was recorded."""
    failure: Failure | None = None
    """What the failure means."""
    health: HealthEntry | None = None
    """Health of the backend after the report."""
    next: str | None = None
    """The backend that could continue the conversation; null: none is available."""


INTERACTIVE_FAILED: Method[InteractiveFailedParams, InteractiveFailedResult] = Method(
    "interactive.failed",
    params=InteractiveFailedParams,
    result=InteractiveFailedResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("unknown", "draining"),
    summary="Report that a turn failed in an agent that a person has open.",
    example=(
        {
            "agent": "claude",
            "error": "rate_limit",
            "text": "You've hit your session limit \u00b7 resets 1pm (UTC)",
            "session": "b4aa40fd-00e7-44ab-ba2a-6581bba52b3c",
        },
        {
            "backend": "claude",
            "health": {
                "state": "rate_limited",
                "reason": "usage_limit",
                "until_at": 1767272400.0,
                "count": 1,
                "source": "provider",
            },
            "next": "codex",
        },
    ),
)


class InteractivePlanParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    agent: Name
    """Kind of the agent, such as `claude`."""
    windows: tuple[PlanWindow, ...] = ()
    """What the agent shows of its plan; empty: it shows nothing."""
    home: DirectoryPath | None = None
    """Directory of its login where that is not the usual one; it tells accounts apart."""


class InteractivePlanResult(Struct, frozen=True, kw_only=True):
    backend: str | None = None
    """The configured backend that the agent is; null: none, and nothing was recorded."""
    health: HealthEntry | None = None
    """Its health."""
    others: dict[str, HealthEntry] = field(default_factory=dict)
    """Health of the other agents of its chain, in order."""


INTERACTIVE_PLAN: Method[InteractivePlanParams, InteractivePlanResult] = Method(
    "interactive.plan",
    params=InteractivePlanParams,
    result=InteractivePlanResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("draining",),
    summary="Report what an agent that a person has open shows of its plan.",
    example=(
        {
            "agent": "claude",
            "windows": [{"window_s": 18000, "used_percent": 83, "resets_at": 1767272400.0}],
        },
        {
            "backend": "claude",
            "health": {"state": "healthy"},
            "others": {"codex": {"state": "healthy"}},
        },
    ),
)


METHODS = (INTERACTIVE_FAILED, INTERACTIVE_PLAN)
