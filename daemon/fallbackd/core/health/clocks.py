"""A record of health after the wall clock was set, and after a restart."""

from collections.abc import Collection

from msgspec import structs

from fallbackd.core.health.record import Health, Outage
from fallbackd.core.ids import AttemptId

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
