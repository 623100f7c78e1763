"""
Health of one scope: a record, and what it means at an instant.

             failure that passes by itself                 until_at passed
  healthy ──────────────────────────▶ rate_limited ────────────────────▶ cooldown ──▶ healthy
     │                                    ▲    ▲                           │  │     (unproven)
     │   failure that needs a repair      │    └──────── failure ──────────┘  └ success ▶ healthy
     └───────────────────────▶ broken ────┴── ttl ends ──▶ cooldown
  any ── person ──▶ paused ── person ──▶ what the record says

Nothing here moves by itself: a record keeps the last outage and the two ends of it, and
`view` computes the state of the moment. So a daemon that slept an hour is right at its first
question, and how often anybody looked makes no difference.
"""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.failures import Failure, Reason
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.policy import ReasonPolicy

StateWord = Literal["healthy", "rate_limited", "cooldown", "broken", "paused"]
Source = Literal["policy", "provider", "person", "import", "readiness"]

COUNT_MEMORY_S = 3600.0
"""This long after window and cooldown have ended, the count of failures is forgotten."""
JITTER = 0.1
EARLY_TRIAL_S = 3600.0
"""A stated time is doubted for the first time after this, then twice as late each time."""
LONG_STOP_S = 3600.0
"""After a stop of this length, what our policy believed is tried before it is believed."""


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
    """When the attempt began that failed; None: nobody knows."""
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


class Health(Struct, frozen=True, kw_only=True):
    """What is kept of one scope. A scope without a record is healthy."""

    scope: ScopeId
    outage: Outage | None = None
    pause: Pause | None = None
    trial: Trial | None = None
    generation: int = 0
    last_attempt_at: float | None = None
    early_trials: int = 0
    announced: StateWord = "healthy"
    """What was last said to the world; the tick says the rest."""
    loaded_at: float | None = None
    """When this record was read from disk, if nothing has confirmed it since."""
    throttled_at: float | None = None
    """A first throttle that has marked nothing, where another credential could take over."""
    proven_at: float | None = None
    """When the attempt began that ended the last outage. Marks from before are over, whoever
    repeats them."""
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
    if health.pause is not None:
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


def is_leased(health: Health | None, *, now: float) -> bool:
    """Whether somebody holds the one trial of a scope. The lease of a caller runs out."""
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


def window_s(policy: ReasonPolicy, count: int, *, luck: float) -> float:
    """
    Length of the `count`-th consecutive window, in seconds.

    The first is exact, the next ones grow and are jittered by ±10 % within the ceiling.
    """
    if count <= 1:
        return policy.window_s
    grown = min(policy.window_s * policy.growth ** min(count - 1, 64), policy.max_window_s)
    grown = max(grown, policy.window_s)
    if policy.growth == 1:
        return grown
    jittered = grown * (1 + JITTER * (2 * luck - 1))
    return min(jittered, max(policy.max_window_s, policy.window_s))


def fail(
    health: Health | None,
    scope: ScopeId,
    failure: Failure,
    policy: ReasonPolicy,
    *,
    started_at: float | None,
    now: float,
    luck: float,
    forever: bool = False,
    first_window_s: float | None = None,
    repeated: bool = False,
) -> Health:
    """
    Take a scope out of use after a failure.

    Args:
        started_at: When the failing attempt began; None where nobody knows. A failure of an
            attempt from before the running outage is no news: ten parallel failures are one.
        forever: No end but repair (a revoked credential).
        first_window_s: Replaces the policy's `window_s` (a model without a name).
        repeated: The stated time was waited for and proved too short: the window is at least the
            policy's first one.

    Returns:
        The new record. A time that the provider states replaces a policy window in either
        direction; without one a failure inside a window changes nothing, unless it needs a repair
        and the running one does not.
    """
    if first_window_s is not None:
        policy = structs.replace(policy, window_s=first_window_s, max_window_s=first_window_s)
    record = health or Health(scope=scope)
    old = record.outage
    is_running = old is not None and (old.until_at is None or now < old.until_at)
    is_stale = old is not None and started_at is not None and started_at < old.since_at
    stated_at = failure.wait_until_at
    if repeated and stated_at is not None:
        stated_at = stated_at if stated_at >= now + policy.window_s else None
    is_stated = stated_at is not None and stated_at > now and not forever
    is_new = not (is_stale or (is_running and (started_at is None or not is_stated)))
    count = max(1, count_at(record, now=now) + (1 if is_new else 0))

    end_at = stated_at if is_stated else now + window_s(policy, count, luck=luck)
    if forever:
        end_at = None
    source: Source = "provider" if is_stated else "policy"

    if old is not None and is_running:
        needs_more = policy.state == "broken" and (forever or not _is_repair(old))
        if not is_stated and not repeated and not needs_more:
            return record
        if _is_repair(old) and policy.state != "broken" and not is_stated:
            return record  # a passing failure neither hides nor ends what needs a repair
        may_shorten = is_stated and old.source != "person" and not (is_stale and _is_repair(old))
        if not may_shorten and _is_not_later(end_at, old.until_at):
            if is_stale or old.source == "person":
                return record
            end_at = old.until_at
            source = old.source
        elif is_stale and not is_stated and old.reason is failure.reason:
            return record
    return structs.replace(
        record,
        outage=Outage(
            state=policy.state,
            reason=failure.reason,
            detail=failure.detail,
            since_at=old.since_at if old is not None and is_stale else now,
            until_at=end_at,
            cooldown_s=_recovery_s(policy, failure.wait_s if is_stated else None),
            source=source,
            stated_reset_at=failure.stated_reset_at,
            evidence=failure.evidence,
            signature=failure.signature,
            count=count,
            last_failure_at=now,
            began_at=started_at,
        ),
        trial=None,
        loaded_at=None,
        early_trials=0 if is_new and not is_running else record.early_trials,
    )


def _recovery_s(policy: ReasonPolicy, length_s: float | None) -> float:
    """The cooldown after a window whose length was said; None: it is the policy's own."""
    if length_s is None or length_s >= policy.window_s:
        return policy.cooldown_s
    return min(policy.cooldown_s, length_s)


def _is_repair(outage: Outage) -> bool:
    return outage.state == "broken"


def _is_not_later(left: float | None, right: float | None) -> bool:
    """Whether the end `left` comes no later than the end `right`; null is never."""
    if right is None:
        return True
    return left is not None and left <= right


def mark(
    health: Health | None,
    scope: ScopeId,
    policy: ReasonPolicy,
    *,
    reason: Reason,
    detail: str | None,
    ttl_s: float | None,
    now: float,
    source: Source = "person",
) -> Health:
    """
    What a person says replaces whatever was believed. `ttl_s` in seconds has no bound.

    What was imported or seen shortens nothing.
    """
    record = health or Health(scope=scope)
    window = policy.window_s if ttl_s is None else ttl_s
    if source != "person" and record.outage is not None:
        old_until_at = record.outage.until_at
        if old_until_at is None or old_until_at > now + window:
            return record
    return structs.replace(
        record,
        outage=Outage(
            state=policy.state,
            reason=reason,
            detail=detail,
            since_at=now,
            until_at=now + window,
            cooldown_s=_recovery_s(policy, ttl_s),
            source=source,
            count=count_at(record, now=now) + 1,
            last_failure_at=now,
        ),
        trial=None,
        generation=record.generation + 1,
        loaded_at=None,
        early_trials=0,
    )


def succeed(health: Health, *, started_at: float) -> Health:
    """The provider answered an attempt that began at `started_at`: later marks stand."""
    if health.outage is not None and started_at < health.outage.since_at:
        return health
    return structs.replace(
        health,
        outage=None,
        trial=None,
        loaded_at=None,
        early_trials=0,
        throttled_at=None,
        proven_at=health.proven_at if health.outage is None else started_at,
    )


def clear(health: Health) -> Health:
    return structs.replace(
        health,
        outage=None,
        trial=None,
        generation=health.generation + 1,
        loaded_at=None,
        early_trials=0,
        throttled_at=None,
    )


def lease(
    health: Health,
    attempt: AttemptId,
    *,
    now: float,
    expires_at: float | None = None,
    owner: str | None = None,
) -> Health:
    generation = health.generation + 1
    early = health.outage is not None and (
        health.outage.until_at is None or now < health.outage.until_at
    )
    return structs.replace(
        health,
        trial=Trial(
            attempt=attempt,
            generation=generation,
            leased_at=now,
            expires_at=expires_at,
            owner=owner,
        ),
        generation=generation,
        last_attempt_at=now,
        early_trials=health.early_trials + (1 if early else 0),
    )


def release(health: Health, attempt: AttemptId) -> Health:
    """Give a lease back without a verdict. A lease of somebody else stays."""
    if health.trial is None or health.trial.attempt != attempt:
        return health
    return structs.replace(health, trial=None)


def early_trial_at(health: Health, *, last_resort_s: float) -> float | None:
    """
    When one trial is allowed before the end of a window, where nobody else is usable.

    A window of ours: `last_resort_s` after the last attempt there. A time that the provider
    stated: after an hour, then twice as late each time. Never for what needs a repair, what a
    person said, or our own budget.
    """
    outage = health.outage
    if outage is None or health.pause is not None or outage.state == "broken":
        return None
    if outage.reason is Reason.LOCAL_BUDGET or outage.source in ("person", "import"):
        return None
    last_at = max(health.last_attempt_at or outage.since_at, outage.since_at)
    if outage.source == "provider":
        return last_at + EARLY_TRIAL_S * 2.0 ** min(health.early_trials, 16)
    return last_at + last_resort_s


def shift(health: Health, by_s: float) -> Health:
    """Move every instant of a record: the wall clock was set by `by_s` seconds."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    outage, pause, trial = health.outage, health.pause, health.trial
    return structs.replace(
        health,
        outage=outage and shift_outage(outage, by_s),
        pause=pause and structs.replace(pause, since_at=pause.since_at + by_s),
        trial=trial
        and structs.replace(
            trial, leased_at=trial.leased_at + by_s, expires_at=moved(trial.expires_at)
        ),
        last_attempt_at=moved(health.last_attempt_at),
        loaded_at=moved(health.loaded_at),
        throttled_at=moved(health.throttled_at),
        proven_at=moved(health.proven_at),
        cleared_at=moved(health.cleared_at),
        word_at=moved(health.word_at),
    )


def shift_outage(outage: Outage, by_s: float) -> Outage:
    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return structs.replace(
        outage,
        since_at=outage.since_at + by_s,
        until_at=moved(outage.until_at),
        stated_reset_at=moved(outage.stated_reset_at),
        last_failure_at=outage.last_failure_at + by_s,
        began_at=moved(outage.began_at),
    )


def from_disk(
    health: Health,
    *,
    now: float,
    stopped_s: float = 0.0,
    running: Collection[AttemptId] = (),
) -> Health:
    """
    A record of an earlier run: a lease of nobody who runs still is void; one that lies in the
    future starts anew.

    Args:
        running: Attempts that are taken up: a trial among them is still the only one.
        stopped_s: How long no daemon was there. After a long stop a window of our own policy is
            over: one trial tells more than a belief of long ago. What a provider or a person
            said stands.

    Source: a clock that was set back between two runs must not make a window longer than it was.
    """
    outage, trial = health.outage, health.trial
    if (
        outage is not None
        and stopped_s >= LONG_STOP_S
        and outage.source == "policy"
        and outage.until_at is not None
        and outage.until_at > now
    ):
        outage = structs.replace(outage, until_at=max(outage.since_at, now))
    if outage is not None and outage.since_at > now + 1:
        length = None if outage.until_at is None else outage.until_at - outage.since_at
        outage = structs.replace(
            outage,
            since_at=now,
            until_at=None if length is None else now + length,
            last_failure_at=now,
        )
    return structs.replace(
        health,
        outage=outage,
        trial=trial if trial is not None and trial.attempt in running else None,
        loaded_at=now,
        last_attempt_at=None
        if health.last_attempt_at is None
        else min(health.last_attempt_at, now),
    )


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
