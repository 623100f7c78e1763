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
question, and how often it was looked at makes no difference.
"""

from msgspec import Struct, structs

from fallbackd.core.failures import Failure, Reason
from fallbackd.core.health.record import Health, Outage, Source, Trial, count_at
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.policy import ReasonPolicy

JITTER = 0.1
EARLY_TRIAL_S = 3600.0
"""A stated time is doubted for the first time after this, then twice as late each time."""
RARE_TRIALS_S = (EARLY_TRIAL_S, 6 * 3600.0, 86_400.0)
"""One of more than a day: after these, then daily. Plans are changed, and windows reset."""


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
        started_at: When the failing attempt began; None where that is unknown. A failure of an
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
    running = _running(record.outage, now=now)
    stale = _begun_after(record.outage, started_at)
    stated = _stated(failure, policy, forever=forever, now=now, repeated=repeated)
    is_new = _is_one_more(stale, running, stated, started_at)
    count = max(1, count_at(record, now=now) + int(is_new))
    until = stated or _own_end(policy, count, forever=forever, now=now, luck=luck)
    adds = stated is not None or _adds(running, policy, forever=forever, repeated=repeated)
    kept = _within(running, until, failure.reason, is_stale=stale is not None) if adds else None
    if kept is None:
        return record
    return structs.replace(
        record,
        outage=Outage(
            state=policy.state,
            reason=failure.reason,
            detail=failure.detail,
            since_at=now if stale is None else stale.since_at,
            until_at=kept.at,
            cooldown_s=_recovery_s(policy, failure.wait_s if stated else None),
            source=kept.source,
            stated_reset_at=failure.stated_reset_at,
            evidence=failure.evidence,
            signature=failure.signature,
            count=count,
            last_failure_at=now,
            began_at=started_at,
        ),
        trial=None,
        loaded_at=None,
        early_trials=0 if is_new and running is None else record.early_trials,
    )


def _running(outage: Outage | None, *, now: float) -> Outage | None:
    """An outage whose window is not over."""
    if outage is None or (outage.until_at is not None and now >= outage.until_at):
        return None
    return outage


def _begun_after(outage: Outage | None, started_at: float | None) -> Outage | None:
    """An outage that began after an attempt; None where the beginning of that is not known."""
    if outage is None or started_at is None or started_at >= outage.since_at:
        return None
    return outage


class _Until(Struct, frozen=True, kw_only=True):
    """The end of a window. `at` null: none but repair or `clear`."""

    at: float | None
    source: Source


def _stated(
    failure: Failure, policy: ReasonPolicy, *, forever: bool, now: float, repeated: bool
) -> _Until | None:
    """The end that the provider states, where it lies ahead and is to be believed."""
    stated_at = failure.wait_until_at
    if forever or stated_at is None or stated_at <= now:
        return None
    if repeated and stated_at < now + policy.window_s:
        return None
    return _Until(at=stated_at, source="provider")


def _own_end(policy: ReasonPolicy, count: int, *, forever: bool, now: float, luck: float) -> _Until:
    """The end by our policy, where the provider states none."""
    end_at = None if forever else now + window_s(policy, count, luck=luck)
    return _Until(at=end_at, source="policy")


def _is_one_more(
    stale: Outage | None, running: Outage | None, stated: _Until | None, started_at: float | None
) -> bool:
    """Whether a failure counts: inside a window only where its beginning and end are both known."""
    if stale is not None:
        return False
    return running is None or (stated is not None and started_at is not None)


def _adds(old: Outage | None, policy: ReasonPolicy, *, forever: bool, repeated: bool) -> bool:
    """
    Whether a failure without a stated time changes the running window. One that passes by itself
    neither hides nor ends what needs a repair.
    """
    if old is None:
        return True
    if policy.state != "broken":
        return repeated and not _is_repair(old)
    return repeated or forever or not _is_repair(old)


def _within(old: Outage | None, until: _Until, reason: Reason, *, is_stale: bool) -> _Until | None:
    """
    The end of a window that runs already, after one more failure; None: it stays as it is. What a
    provider states may shorten a window, but not one of a person, nor by a stale failure one that
    needs a repair.
    """
    if old is None:
        return until
    is_stated, is_of_person = until.source == "provider", old.source == "person"
    if is_stated and not is_of_person and not (is_stale and _is_repair(old)):
        return until
    if _is_not_later(until.at, old.until_at):
        return None if is_stale or is_of_person else _Until(at=old.until_at, source=old.source)
    return None if is_stale and not is_stated and old.reason is reason else until


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
    early = _running(health.outage, now=now) is not None
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
    """Give a lease back without a verdict. A lease of another attempt stays."""
    if health.trial is None or health.trial.attempt != attempt:
        return health
    return structs.replace(health, trial=None)


def early_trial_at(health: Health, *, last_resort_s: float) -> float | None:
    """
    When one trial is allowed before the end of a window, where no other candidate is usable.

    A window of ours: `last_resort_s` after the last attempt there. A time that the provider
    stated: after an hour, then twice as late each time, of more than a day by `RARE_TRIALS_S`.
    Never for what needs a repair, what a person said, or our own budget.
    """
    outage = health.outage
    if outage is None or health.pause is not None or outage.state == "broken":
        return None
    if outage.reason is Reason.LOCAL_BUDGET or outage.source in ("person", "import"):
        return None
    last_at = max(health.last_attempt_at or outage.since_at, outage.since_at)
    if outage.source == "provider":
        return last_at + _doubt_s(outage, health.early_trials)
    return last_at + last_resort_s


def _doubt_s(outage: Outage, trials: int) -> float:
    if outage.until_at is not None and outage.until_at - outage.since_at > RARE_TRIALS_S[-1]:
        return RARE_TRIALS_S[min(trials, len(RARE_TRIALS_S) - 1)]
    return EARLY_TRIAL_S * 2.0 ** min(trials, 16)
