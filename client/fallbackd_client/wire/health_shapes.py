"""Health of scopes, credentials and backends, and what was used of their windows."""

from msgspec import Struct

from fallbackd_client.wire.bounds import (
    CostWord,
    HealthSourceWord,
    HealthState,
    LimitSourceWord,
    LimitUnitWord,
    PeriodWord,
    ReasonWord,
    UnitWord,
)


class ScopeHealth(Struct, frozen=True, kw_only=True):
    """The record of one scope that a backend touches."""

    scope: str
    """Name of the scope, such as `backend:codex` or `quota:chatgpt-plan`."""
    state: HealthState
    """`healthy`, `rate_limited`, `cooldown` (recovering), `broken` or `paused`."""
    unproven: bool = False
    """The outage ended by time alone; the next call is a probe."""
    reason: ReasonWord | None = None
    """Why it is unavailable."""
    detail: str | None = None
    """A narrower word, or the words of the person who marked it."""
    since_at: float | None = None
    """When the state began."""
    until_at: float | None = None
    """When it is expected to end; null: it needs a fix, or it is healthy."""
    count: int = 0
    """Consecutive failures."""
    source: HealthSourceWord | None = None
    """What set it: `policy`, `provider`, `person` or `import`."""
    seconds_remaining: float | None = None
    """Seconds until `until_at`."""
    note: str | None = None
    """Note of the person who marked or paused it."""
    age_s: float | None = None
    """Seconds since it began."""
    loaded_at: float | None = None
    """When it was read from disk, if nothing has confirmed it since."""
    stated_reset_at: float | None = None
    """The reset time that the provider stated."""
    seen_by: str | None = None
    """MACHINE/BACKEND that found it, if another machine did."""
    trial: str | None = None
    """The attempt that probes it now."""
    trial_owner: str | None = None
    """The caller that probes it now with a call of its own."""
    trial_generation: int | None = None
    """Number of the lease of that probe."""
    trial_expires_at: float | None = None
    """When that lease expires."""


class CredentialHealth(Struct, frozen=True, kw_only=True):
    """One of a backend's credentials, by its label."""

    label: str
    """Label of the credential."""
    state: HealthState
    """`healthy`, `rate_limited`, `cooldown` (recovering), `broken` or `paused`."""
    unproven: bool = False
    """The outage ended by time alone; the next call is a probe."""
    reason: ReasonWord | None = None
    """Why it is unavailable."""
    detail: str | None = None
    """A narrower word, or the words of the person who marked it."""
    since_at: float | None = None
    """When the state began."""
    until_at: float | None = None
    """When it is expected to end; null while unavailable: when its source changes."""
    count: int = 0
    """Consecutive failures."""
    source: HealthSourceWord | None = None
    """What set it: `policy`, `provider`, `person` or `import`."""
    seconds_remaining: float | None = None
    """Seconds until `until_at`."""
    note: str | None = None
    """Note of the person who marked or paused it."""
    age_s: float | None = None
    """Seconds since it began."""
    loaded_at: float | None = None
    """When it was read from disk, if nothing has confirmed it since."""
    stated_reset_at: float | None = None
    """The reset time that the provider stated."""
    uses: int = 0
    """How many calls used it."""


class Limit(Struct, frozen=True, kw_only=True):
    """
    The used part of one window of a plan or a key, as a provider or an agent said last.

    Figures lag behind, and decide nothing once they are not `fresh`.
    """

    used_percent: float
    """How much of the window is used, from 0 to 100, and a little more where the plan allows it."""
    window_s: float | None = None
    """Length of the window in seconds, such as 18000 for five hours; null: not stated."""
    unit: LimitUnitWord = "percent"
    """What is counted: `percent` of a plan, `requests` or `tokens`."""
    limit: float | None = None
    """The whole of the window, in `unit`; null: not stated."""
    left: float | None = None
    """What is left of it, in `unit`; null: not stated."""
    resets_at: float | None = None
    """When the window begins anew; null: not stated."""
    scope: str = ""
    """What it is about: a model, a credential or a plan, by its name in health."""
    model: str | None = None
    """The model, or the family of models, that it is about; null: all."""
    credential: str | None = None
    """Label of the key that it is about; null: the login of the program."""
    source: LimitSourceWord = "headers"
    """Where it was read: `headers` of an answer, an `event` of the program, a file of a `session`,
    or the `statusline` of an open session."""
    at: float = 0.0
    """When it was seen."""
    age_s: float = 0.0
    """Seconds since then."""
    fresh: bool = False
    """It is recent enough to act on."""
    percent_per_hour: float | None = None
    """Pace since the window began, on average; null: not known."""
    runs_out_at: float | None = None
    """When nothing is left at that pace; null: not before the window begins anew, or not known."""


class HealthEntry(Struct, frozen=True, kw_only=True):
    """
    A backend's health: the worst of the scopes that it touches.

    `marked_broken_at` and `ttl_seconds` repeat `since_at` and the length of the window for older
    callers.
    """

    state: HealthState
    """`healthy`, `rate_limited`, `cooldown` (recovering), `broken` or `paused`."""
    unproven: bool = False
    """The outage ended by time alone; the next call is a probe."""
    reason: ReasonWord | None = None
    """Why it is unavailable."""
    detail: str | None = None
    """A narrower word, or the words of the person who marked it."""
    since_at: float | None = None
    """When the state began."""
    until_at: float | None = None
    """When it is expected to end; null: it needs a fix, or it is healthy."""
    count: int = 0
    """Consecutive failures."""
    source: HealthSourceWord | None = None
    """What set it: `policy`, `provider`, `person` or `import`."""
    seconds_remaining: float | None = None
    """Seconds until `until_at`."""
    marked_broken_at: float | None = None
    """The same as `since_at`, for older callers."""
    ttl_seconds: float | None = None
    """Length of the window in seconds, for older callers."""
    note: str | None = None
    """Note of the person who marked or paused it."""
    age_s: float | None = None
    """Seconds since it began."""
    loaded_at: float | None = None
    """When it was read from disk, if nothing has confirmed it since."""
    stated_reset_at: float | None = None
    """The reset time that the provider stated."""
    seen_by: str | None = None
    """MACHINE/BACKEND that found it, if another machine did."""
    scopes: tuple[ScopeHealth, ...] = ()
    """The records that it is computed from."""
    credentials: tuple[CredentialHealth, ...] = ()
    """Its configured credentials, in order."""
    limits: tuple[Limit, ...] = ()
    """How much of its plan or keys is used, where that was said; short windows first."""


class UsageRow(Struct, frozen=True, kw_only=True):
    """The usage of one backend in one period."""

    backend: str
    """The backend."""
    period: PeriodWord
    """`hour`, `day` (UTC), `week` (seven days), `total`, `since` (as asked for), or `model`: a time
    in which a session was on one model."""
    since_at: float | None = None
    """When the period began."""
    until_at: float | None = None
    """When the period ended; null: it is still running."""
    session: str | None = None
    """The session, where one was asked for."""
    model: str | None = None
    """The model, in rows of the period `model`."""
    attempts: int = 0
    """Attempts that were started."""
    successes: int = 0
    """Attempts that succeeded."""
    failures: int = 0
    """Attempts that failed."""
    input_tokens: int = 0
    """Tokens of the prompts."""
    output_tokens: int = 0
    """Tokens of the answers."""
    cost_usd: float | None = None
    """Cost in US dollars, where the provider says it."""
    cap: float | None = None
    """The cap of this period."""
    unit: UnitWord | None = None
    """Unit of the cap: `requests` or `tokens`."""
    cost: CostWord | None = None
    """How calls are paid: `subscription`, `metered` or `local`; null: not configured."""
