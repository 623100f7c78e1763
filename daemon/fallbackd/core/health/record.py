"""What is kept of one scope, and what that means at an instant."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.failures import Reason
from fallbackd.core.ids import AttemptId, ScopeId

StateWord = Literal["healthy", "rate_limited", "cooldown", "broken", "paused"]
Source = Literal["policy", "provider", "person", "import", "readiness"]
COUNT_MEMORY_S = 3600.0
"""This long after window and cooldown have ended, the count of failures is forgotten."""


class Outage(Struct, frozen=True, kw_only=True):
    """The last outage of a scope. Over when `until_at` and `cooldown_until_at` have passed."""

    state: Literal["rate_limited", "broken"]
    reason: Reason
    detail: str | None = None
    since_at: float
    until_at: float | None
    """Null: no end but repair or `clear`."""
    cooldown_s: float = 0.0
    source: Source = "policy"
    stated_reset_at: float | None = None
    evidence: str = ""
    signature: str = ""
    count: int = 1
    last_failure_at: float = 0.0
    began_at: float | None = None
    """When the attempt began that failed; None: unknown."""
    seen_by: str | None = None
    """MACHINE/BACKEND, where another machine has found it."""


class Trial(Struct, frozen=True, kw_only=True):
    """The one leased attempt on a scope that came back by the clock alone."""

    attempt: AttemptId
    generation: int
    leased_at: float
    expires_at: float | None = None
    """Null: it belongs to an attempt of ours and ends with it."""
    owner: str | None = None
    """The caller that makes the attempt by itself, in a word for people."""


class Pause(Struct, frozen=True, kw_only=True):
    since_at: float
    note: str | None = None
    until_at: float | None = None
    """Null: until a person resumes it."""


class Health(Struct, frozen=True, kw_only=True):
    """What is kept of one scope. A scope without a record is healthy."""

    scope: ScopeId
    outage: Outage | None = None
    pause: Pause | None = None
    trial: Trial | None = None
    generation: int = 0
    last_attempt_at: float | None = None
    early_trials: int = 0
    doubted_at: float | None = None
    """When an outage was ended because its login was answered elsewhere."""
    announced: StateWord = "healthy"
    """What was last said to the world; the tick says the rest."""
    loaded_at: float | None = None
    """When this record was read from disk, if nothing has confirmed it since."""
    throttled_at: float | None = None
    """A first throttle that has marked nothing, where another credential could take over."""
    proven_at: float | None = None
    """When the attempt began that ended the last outage. Earlier marks are void, even if they are
    repeated."""
    cleared_at: float | None = None
    """The same for a person's `clear`, which holds on this machine alone."""
    word_id: str = ""
    word_at: float | None = None
    """The last word of a person for all machines that was followed here, and when it was said."""


class View(Struct, frozen=True, kw_only=True):
    """A record at an instant."""

    state: StateWord
    unproven: bool = False
    until_at: float | None = None


HEALTHY = View(state="healthy")
_PAUSED = View(state="paused")


def view(health: Health | None, *, now: float) -> View:
    if health is None:
        return HEALTHY
    if is_paused(health, now=now):
        return _PAUSED
    outage = health.outage
    if outage is None:
        return HEALTHY
    if outage.until_at is None or now < outage.until_at:
        return View(state=outage.state, until_at=outage.until_at)
    cooldown_until_at = outage.until_at + outage.cooldown_s
    if now < cooldown_until_at:
        return View(state="cooldown", unproven=True, until_at=cooldown_until_at)
    return View(state="healthy", unproven=True)


def is_paused(health: Health, *, now: float) -> bool:
    pause = health.pause
    return pause is not None and (pause.until_at is None or now < pause.until_at)


def is_leased(health: Health | None, *, now: float) -> bool:
    """Whether the one trial of a scope is taken. The lease of a caller expires."""
    if health is None or health.trial is None:
        return False
    expires_at = health.trial.expires_at
    return expires_at is None or now < expires_at


def count_at(health: Health | None, *, now: float) -> int:
    """Consecutive failures that still count."""
    if health is None or health.outage is None:
        return 0
    outage = health.outage
    if outage.until_at is None:
        return outage.count
    ended_at = outage.until_at + outage.cooldown_s
    return outage.count if now <= ended_at + COUNT_MEMORY_S else 0


SEVERITY: dict[StateWord, int] = {
    "healthy": 0,
    "cooldown": 2,
    "rate_limited": 3,
    "broken": 4,
    "paused": 5,
}


def severity(seen: View) -> int:
    """Rank for choosing and for the worst of several scopes: 0 is best."""
    return 1 if seen.state == "healthy" and seen.unproven else SEVERITY[seen.state]
