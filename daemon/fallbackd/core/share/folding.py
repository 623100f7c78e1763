"""What other machines have found becomes health of this one."""

from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.health.record import Health, Outage, Pause, Trial
from fallbackd.core.ids import AttemptId
from fallbackd.core.share.records import (
    LEASE_PREFIX,
    MAX_AHEAD_S,
    PersonWord,
    SharedLease,
    SharedMark,
    SharedRecord,
    in_force,
    join,
)
from fallbackd.core.share.scopes import is_shared_fact

SAME_S = 1.0
"""Clocks that are compared over a network agree no better: what differs by less is the same."""


def folded(health: Health, record: SharedRecord, *, now: float) -> Health:
    """The health of a scope with what other machines know of it."""
    if record.word is not None and _is_news(health, record.word):
        health = _told(health, record.word, now=now)
    health = _with_facts(health, record, now=now)
    return _with_lease(health, record.lease, now=now)


def _with_facts(health: Health, record: SharedRecord, *, now: float) -> Health:
    outage = health.outage
    if outage is not None and not is_shared_fact(outage):
        theirs = _stands_before(health, outage, record, now=now)
        return (
            health if theirs is None else structs.replace(health, outage=_outage(theirs, now=now))
        )
    known = join(_own(health, outage), record)
    best = in_force(known, now=now)
    if best is None:
        if outage is None:
            return health
        return structs.replace(
            health, outage=None, trial=None, proven_at=known.proven_at, early_trials=0
        )
    if outage is not None and _is_same(outage, best):
        return health
    return structs.replace(health, outage=_outage(best, now=now), loaded_at=None, early_trials=0)


def _stands_before(
    health: Health, own: Outage, record: SharedRecord, *, now: float
) -> SharedMark | None:
    """What others know and what counts more than an outage of this machine alone."""
    is_over = own.until_at is not None and own.until_at <= now
    if own.source == "person" and not is_over:
        return None
    theirs = in_force(join(_own(health, None), record), now=now)
    if theirs is None or is_over or _is_later(theirs.until_at, own.until_at):
        return theirs
    return None  # what is wrong with this machine alone, no other one can end


def _own(health: Health, outage: Outage | None) -> SharedRecord:
    ended = [at for at in (health.proven_at, health.cleared_at) if at is not None]
    return SharedRecord(
        scope=health.scope,
        marks=frozenset() if outage is None else frozenset({mark_of(outage, source="")}),
        proven_at=max(ended, default=None),
    )


def untold(
    health: Health, record: SharedRecord, *, now: float
) -> Literal["failure", "success"] | None:
    """What the others lack of what this machine knows: after an outage, or where they lost it."""
    outage = health.outage
    if outage is None or not is_shared_fact(outage):
        return "success" if _is_unheard_success(health, record) else None
    is_over = outage.until_at is not None and outage.until_at + outage.cooldown_s <= now
    theirs = in_force(record, now=now)
    best = in_force(join(_own(health, outage), record), now=now)
    if is_over or best is None:
        return None
    if theirs is not None and (_is_same(outage, theirs) or best in record.marks):
        return None
    return "failure"


def _is_unheard_success(health: Health, record: SharedRecord) -> bool:
    """Whether a mark of others began before this machine had an answer."""
    if health.proven_at is None or record.word is not None:
        return False
    return any(one.since_at <= health.proven_at - SAME_S for one in record.marks)


def mark_of(outage: Outage, *, source: str) -> SharedMark:
    return SharedMark(
        state=outage.state,
        reason=outage.reason,
        detail=outage.detail,
        since_at=outage.since_at,
        until_at=outage.until_at,
        cooldown_s=outage.cooldown_s,
        count=outage.count,
        stated=outage.source == "provider",
        source=outage.seen_by or source,
    )


def _outage(mark: SharedMark, *, now: float) -> Outage:
    """Bounded: no machine is believed for longer than a policy would believe a provider."""
    until_at = mark.until_at
    if until_at is not None:
        until_at = min(until_at, now + MAX_AHEAD_S)
    return Outage(
        state=mark.state,
        reason=mark.reason,
        detail=mark.detail,
        since_at=min(mark.since_at, now),
        until_at=until_at,
        cooldown_s=mark.cooldown_s,
        source="provider" if mark.stated else "policy",
        stated_reset_at=until_at if mark.stated else None,
        count=mark.count,
        last_failure_at=min(mark.since_at, now),
        seen_by=mark.source or None,
    )


def _is_same(outage: Outage, mark: SharedMark) -> bool:
    if (outage.state, outage.reason) != (mark.state, mark.reason):
        return False
    if (outage.until_at is None) != (mark.until_at is None):
        return False
    ends = abs((outage.until_at or 0.0) - (mark.until_at or 0.0))
    return ends < SAME_S and abs(outage.since_at - mark.since_at) < SAME_S


def _is_later(left: float | None, right: float | None) -> bool:
    return right is not None and (left is None or left > right)


def _with_lease(health: Health, lease: SharedLease | None, *, now: float) -> Health:
    trial = health.trial
    is_theirs = trial is not None and is_peer(trial.attempt)
    if trial is not None and not is_theirs:
        return health  # our own, with the lease of the arbiter or, while it was away, without
    if lease is None or lease.until_at <= now:
        return structs.replace(health, trial=None) if is_theirs else health
    if trial is not None and trial.owner == lease.owner:
        drift_s = (trial.expires_at or 0.0) - lease.until_at
        if abs(drift_s) < SAME_S:
            return health
    return structs.replace(
        health,
        trial=Trial(
            attempt=AttemptId(LEASE_PREFIX + lease.owner),
            generation=health.generation,
            leased_at=now,
            expires_at=min(lease.until_at, now + MAX_AHEAD_S),
            owner=lease.owner,
        ),
    )


def is_peer(attempt: AttemptId) -> bool:
    """Whether a trial is made by another machine."""
    return attempt.startswith(LEASE_PREFIX)


def _is_news(health: Health, word: PersonWord) -> bool:
    """A word counts once: what was said on this machine afterwards stands."""
    return word.id != health.word_id and word.at > (health.word_at or 0.0) - SAME_S


def _told(health: Health, word: PersonWord, *, now: float) -> Health:
    health = structs.replace(health, word_id=word.id, word_at=word.at)
    said_at = min(word.at, now)
    last_at = said_at + MAX_AHEAD_S
    match word.action:
        case "resume":
            is_newer = health.pause is not None and health.pause.since_at > word.at
            return health if is_newer else structs.replace(health, pause=None)
        case "pause":
            return structs.replace(
                health, pause=Pause(since_at=said_at, note=_note_of(word), until_at=last_at)
            )
        case "clear":
            if health.outage is not None and health.outage.since_at > word.at:
                return health
            return structs.replace(
                health, outage=None, trial=None, cleared_at=word.at, early_trials=0
            )
        case "mark":
            return structs.replace(
                health,
                outage=Outage(
                    state=word.state,
                    reason=word.reason,
                    detail=word.note or None,
                    since_at=said_at,
                    until_at=min(word.until_at or last_at, last_at),
                    source="person",
                    seen_by=word.source or None,
                    last_failure_at=said_at,
                ),
                trial=None,
            )


def _note_of(word: PersonWord) -> str:
    paused = f"(paused {f'on {word.source}' if word.source else ''})"
    return f"{word.note} {paused}" if word.note else paused


class News(Struct, frozen=True, kw_only=True):
    """What a change of a scope says to the other machines."""

    is_any: bool = False
    withdrawn_at: float | None = None
    """Since when the mark was there that has been taken back."""


def news_in(before: Health | None, after: Health) -> News:
    if before is None:
        before = Health(scope=after.scope)
    was, outage = before.outage, after.outage
    is_found = outage is not None and outage != was and is_shared_fact(outage)
    is_proven = after.proven_at is not None and after.proven_at != before.proven_at
    is_ended = before.trial is not None and after.trial is None
    withdrawn_at = None
    if was is not None and outage is None and after.cleared_at == before.cleared_at:
        withdrawn_at = None if is_proven else _own_since(was)
    return News(is_any=is_found or is_proven or is_ended, withdrawn_at=withdrawn_at)


def _own_since(outage: Outage) -> float | None:
    """Since when this machine has known an outage that others may hear of."""
    return outage.since_at if outage.seen_by is None and is_shared_fact(outage) else None
