"""
Health of one scope: its record, what changes it, and what it means at an instant.

             failure that passes by itself                 until_at passed
  healthy ──────────────────────────▶ rate_limited ────────────────────▶ cooldown ──▶ healthy
     │                                    ▲    ▲                           │  │     (unproven)
     │   failure that needs a repair      │    └──────── failure ──────────┘  └ success ▶ healthy
     └───────────────────────▶ broken ────┴── ttl ends ──▶ cooldown
  any ── person ──▶ paused ── person ──▶ what the record says

Nothing here moves by itself: a record keeps the last outage and the two ends of it, and
`view` computes the state of the moment. So a daemon that slept an hour is right at its first
question, and how often it was looked at makes no difference.

*Cooldown* here means recovering, usable as second choice; elsewhere the word often means out of
use. Half-open is not a state: it is `cooldown` or `healthy (unproven)` with a leased trial. Marks
are made when a candidate is given up, once per delegation and candidate; while a stated wait runs,
nothing is marked yet.
"""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.reasons import Reason, ReasonPolicy

# The record of one scope, and what it means at an instant.


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
    """Start of the attempt that failed; None: unknown."""
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
    """The health of one scope. A scope without a record is healthy."""

    scope: ScopeId
    outage: Outage | None = None
    pause: Pause | None = None
    trial: Trial | None = None
    generation: int = 0
    last_attempt_at: float | None = None
    early_trials: int = 0
    doubted_at: float | None = None
    """Time when an outage was ended because its login was answered elsewhere."""
    announced: StateWord = "healthy"
    """The state last announced to the world; the tick announces the rest."""
    loaded_at: float | None = None
    """Time when this record was read from disk, if nothing has confirmed it since."""
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
    """Return whether the one trial of a scope is taken. The lease of a caller expires."""
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


# A failure whose reason was guessed from text marks only shortly, whatever it states.


SURE = 0.95
MAX_FIRST_WINDOW_S, MAX_WINDOW_S = 60.0, 1800.0
"""It grows while the same is found again: what holds longer proves itself."""


def is_doubtful(failure: Failure) -> bool:
    return failure.confidence == "text" and failure.confidence_score < SURE


def doubted(failure: Failure, policy: ReasonPolicy, *, now: float) -> tuple[Failure, ReasonPolicy]:
    """A failure and its policy, bounded: a stated time beyond the first window is not believed."""
    window_s = min(policy.window_s, MAX_FIRST_WINDOW_S)
    until_at = failure.wait_until_at
    if until_at is not None and until_at > now + window_s:
        failure = structs.replace(failure, wait_until_at=None, wait_s=None)
    bounded = structs.replace(
        policy,
        window_s=window_s,
        max_window_s=max(window_s, min(policy.max_window_s, MAX_WINDOW_S)),
        growth=max(policy.growth, 2.0),
        cooldown_s=min(policy.cooldown_s, window_s),
    )
    return failure, bounded


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
    """
    Return whether a failure counts: inside a window only where its beginning and end are both
    known.
    """
    if stale is not None:
        return False
    return running is None or (stated is not None and started_at is not None)


def _adds(old: Outage | None, policy: ReasonPolicy, *, forever: bool, repeated: bool) -> bool:
    """
    Return whether a failure without a stated time changes the running window. One that passes by
    itself neither hides nor ends what needs a repair.
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
    """Return whether the end `left` comes no later than the end `right`; null is never."""
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
    Mark a scope as a person says, which replaces whatever was believed. `ttl_s` in seconds has no
    bound.

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
    Return when one trial is allowed before the end of a window, where no other candidate is usable.

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


# A record of health after the wall clock was set, and after a restart.


LONG_STOP_S = 3600.0
"""After a stop of this length, what our policy believed is tried before it is believed."""


def shift(health: Health, by_s: float) -> Health:
    """Move every instant of a record: the wall clock was set by `by_s` seconds."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    outage, pause, trial = health.outage, health.pause, health.trial
    return structs.replace(
        health,
        outage=outage and shift_outage(outage, by_s),
        pause=pause
        and structs.replace(pause, since_at=pause.since_at + by_s, until_at=moved(pause.until_at)),
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
    Correct a record of an earlier run: a lease without a running attempt is void; one that lies
    in the future starts anew.

    Args:
        running: Re-attached attempts: a trial among them is still the only one.
        stopped_s: How long no daemon was there. After a long stop a window of our own policy is
            over: one trial tells more than a belief of long ago. What a provider or a person
            said stands.

    Source: a clock that was set back between two runs must not make a window longer than it was.
    """
    outage, trial = health.outage, health.trial
    if outage is not None and stopped_s >= LONG_STOP_S:
        outage = _tried_again(outage, now=now)
    if outage is not None and outage.since_at > now + 1:
        outage = _begun_now(outage, now=now)
    return structs.replace(
        health,
        outage=outage,
        trial=trial if trial is not None and trial.attempt in running else None,
        loaded_at=now,
        last_attempt_at=None
        if health.last_attempt_at is None
        else min(health.last_attempt_at, now),
    )


def _tried_again(outage: Outage, *, now: float) -> Outage:
    """A window of our own policy that ends now; any other as it is."""
    if outage.source != "policy" or outage.until_at is None or outage.until_at <= now:
        return outage
    return structs.replace(outage, until_at=max(outage.since_at, now))


def _begun_now(outage: Outage, *, now: float) -> Outage:
    """An outage of the same length that begins now."""
    length_s = None if outage.until_at is None else outage.until_at - outage.since_at
    return structs.replace(
        outage,
        since_at=now,
        until_at=None if length_s is None else now + length_s,
        last_failure_at=now,
    )
