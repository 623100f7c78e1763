"""
Health that several machines have in common: records, how they are merged, what is shared.

`join` is commutative, associative and idempotent, so that it makes no difference in which order a
machine hears of something, or how often. Instants are Unix seconds of this machine's clock: the
engine has converted them from those of the server.

    manual override    later ones replace earlier ones, and win over everything else
    proven_at          an attempt that began then succeeded: marks made until then are over
    marks              those of which none is superseded by another one

A mark is superseded by one that is not older and ranks at least as high. A stated time ranks above
a window of policy; of two stated ones the later evidence, of two windows the later end. Both
conditions are needed: a later success must not end the higher of two marks, and with it the
knowledge of the lower one that it does not end.

A machine that cannot ask the arbiter begins a trial only in its turn: a minute of the server's
clock belongs to the machine with the highest digest of (minute, scope, machine) among those on the
last list of the group. Suppose two machines that know each other begin one in the same minute: each
has found its own digest higher than the other's, a contradiction. So among those that are cut off
at most one begins in any minute, among the connected at most one holds the lease, and two halves
make two at most. The proof needs that both have heard the server since the other one joined, and
that their clocks agree with the server's. A machine that is cut off does not learn how another
one's probe ended; work that has no other way does not wait for a turn.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.health import Health, Outage, Pause, Trial
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.policy import Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import scopes_of

FOREVER = float("inf")
LEASE_PREFIX = "peer-"
"""Prefix of the attempt in whose name a scope is on trial at another machine."""
MAX_DETAIL = 200
MAX_AHEAD_S = 8 * 86_400.0
"""Nothing that another machine says keeps a scope out of use for longer."""

WordAction = Literal["mark", "clear", "pause", "resume"]


class SharedMark(Struct, frozen=True, kw_only=True):
    """One outage, as a machine has found it."""

    state: Literal["rate_limited", "broken"]
    reason: Reason
    detail: str | None = None
    since_at: float
    until_at: float | None
    """None: no end but repair or a person."""
    cooldown_s: float = 0.0
    count: int = 1
    stated: bool = False
    """The provider said when it ends."""
    source: str = ""
    """MACHINE/BACKEND that found it."""


class SharedLease(Struct, frozen=True, kw_only=True):
    """The one trial of a scope over all machines."""

    owner: str
    until_at: float


class PersonWord(Struct, frozen=True, kw_only=True):
    """A statement that a person made on one machine for all of them."""

    id: str
    """Unique: by it a machine knows that it has heard a word already."""
    action: WordAction
    at: float
    until_at: float | None = None
    state: Literal["rate_limited", "broken"] = "broken"
    reason: Reason = Reason.MANUAL
    note: str = ""
    source: str = ""
    """The machine at which it was said."""


class SharedRecord(Struct, frozen=True, kw_only=True):
    scope: ScopeId
    marks: frozenset[SharedMark] = frozenset()
    proven_at: float | None = None
    word: PersonWord | None = None
    lease: SharedLease | None = None
    """Of the arbiter alone, and no part of what is joined."""
    gen: int = 0
    """Number of changes of the arbiter's record; the same holds of it."""


def join(left: SharedRecord, right: SharedRecord) -> SharedRecord:
    """Return what both records know together. The lease is that of `right`, the arbiter's."""
    proven_at = _later(left.proven_at, right.proven_at)
    word = max(
        (one for one in (left.word, right.word) if one is not None), key=_word_key, default=None
    )
    marks = [
        one for one in left.marks | right.marks if (proven_at is None or one.since_at > proven_at)
    ]
    kept = frozenset(one for one in marks if not any(_supersedes(other, one) for other in marks))
    return SharedRecord(
        scope=right.scope,
        marks=kept,
        proven_at=proven_at,
        word=word,
        lease=right.lease,
        gen=right.gen,
    )


def moved(record: SharedRecord, by_s: float, *, scope: ScopeId) -> SharedRecord:
    """Return the record on a clock that is ahead by `by_s`, under another name."""

    def at(instant: float | None) -> float | None:
        return None if instant is None else instant + by_s

    word, lease = record.word, record.lease
    return SharedRecord(
        scope=scope,
        marks=frozenset(
            structs.replace(one, since_at=one.since_at + by_s, until_at=at(one.until_at))
            for one in record.marks
        ),
        proven_at=at(record.proven_at),
        word=word and structs.replace(word, at=word.at + by_s, until_at=at(word.until_at)),
        lease=lease and structs.replace(lease, until_at=lease.until_at + by_s),
        gen=record.gen,
    )


def in_force(record: SharedRecord, *, now: float) -> SharedMark | None:
    """
    The mark that counts: of those that last the one that ranks highest, else the one that ended
    last.
    """
    lasting = [one for one in record.marks if _end(one) > now]
    if lasting:
        return max(lasting, key=_rank)
    return max(record.marks, key=lambda one: (_end(one), _rank(one)), default=None)


def _later(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)


def _end(mark: SharedMark) -> float:
    return FOREVER if mark.until_at is None else mark.until_at


def _rank(mark: SharedMark) -> tuple[object, ...]:
    """Total, so that of two equally strong marks every machine chooses the same one."""
    end = _end(mark)
    first, second = (mark.since_at, end) if mark.stated else (end, mark.since_at)
    return (
        mark.stated,
        first,
        second,
        mark.state,
        mark.reason.value,
        mark.source,
        mark.count,
        mark.cooldown_s,
        mark.detail or "",
    )


def _supersedes(other: SharedMark, one: SharedMark) -> bool:
    return other != one and other.since_at >= one.since_at and _rank(other) > _rank(one)


def _word_key(word: PersonWord) -> tuple[object, ...]:
    end = FOREVER if word.until_at is None else word.until_at
    rest = (word.action, end, word.state, word.reason.value, word.source, word.note)
    return (word.at, word.id, *rest)


# Shared records: facts about an account or a service, never about this machine.


SHARED_REASONS = frozenset(
    {
        Reason.RATE_LIMIT,
        Reason.USAGE_LIMIT,
        Reason.BILLING,
        Reason.OVERLOADED,
        Reason.SERVER_ERROR,
    }
)
"""A network that fails or a program that crashes may be this machine's own trouble."""


def is_shared_reason(reason: Reason, detail: str | None) -> bool:
    return reason in SHARED_REASONS or (reason is Reason.AUTH and detail == "revoked")


def is_shared_fact(outage: Outage) -> bool:
    """Return whether other machines may know of an outage that was found here."""
    is_found = outage.source in ("policy", "provider")
    return is_found and is_shared_reason(outage.reason, outage.detail)


class SharedNames:
    """
    The names under which machines know the scopes of this one.

    Args:
        remote: HTTP backends on another host than this one: their models are the same everywhere.
        private: Providers on this host.
        identities: `credential:OWNER/LABEL` to `credential:OWNER/DIGEST`. A label is no identity:
            credentials that are not here are not shared.
    """

    def __init__(
        self,
        *,
        remote: frozenset[str] = frozenset(),
        private: frozenset[str] = frozenset(),
        identities: Mapping[ScopeId, ScopeId] = MappingProxyType({}),
    ) -> None:
        self._remote = remote
        self._private = private
        self._shared = dict(identities)
        self._local = {shared: local for local, shared in identities.items()}

    def mirrored(self, scope: ScopeId) -> ScopeId | None:
        """The name of a scope about which machines tell each other; None: it is ours alone."""
        kind, _, name = scope.partition(":")
        is_common = (
            kind in ("quota", "credential")
            or (kind == "provider" and name not in self._private)
            or (kind == "model" and name.partition("/")[0] in self._remote)
        )
        return self.named(scope) if is_common else None

    def named(self, scope: ScopeId) -> ScopeId | None:
        """The name of a scope about which a person may say something for all machines."""
        if not scope.startswith("credential:"):
            return scope
        return _renamed(scope, self._shared)

    def local(self, scope: ScopeId) -> ScopeId | None:
        """The scope of this machine that a shared one is; None: none that it could be."""
        if not scope.startswith("credential:"):
            return scope
        return _renamed(scope, self._local)

    def known(self, policy: Policy, health: Iterable[ScopeId]) -> tuple[ScopeId, ...]:
        """Every scope of this configuration that has a name, under its local one."""
        found: dict[ScopeId, None] = {}
        for backend in policy.backends.values():
            for label in backend.credentials or (None,):
                for scope in scopes_of(backend, backend.model, label):
                    found[scope] = None
        found.update(dict.fromkeys(health))
        return tuple(scope for scope in found if self.named(scope) is not None)


def _renamed(scope: ScopeId, names: Mapping[ScopeId, ScopeId]) -> ScopeId | None:
    """A credential, or a credential with a model."""
    plain, plus, model = scope.partition("+model:")
    found = names.get(ScopeId(plain))
    return None if found is None else ScopeId(f"{found}{plus}{model}")


# Turns of machines to probe a scope where machines cannot ask the arbiter.
#
# Time on the server's clock is cut into turns of equal length. Each turn of a scope belongs to the
# machine whose digest is the highest among those that are known, itself included. Of two machines
# that know each other at most one finds its own digest the higher one, whatever else each of them
# knows: so of machines that know each other at most one begins a probe in a turn, without a word
# between them.


TURN_S = 60.0
"""As long as the arbiter would have leased it."""


class ProbeTurn(Struct, frozen=True, kw_only=True):
    instance: str
    """The machine whose turn it is."""
    ends_in_s: float


def turn_of(scope: ScopeId, instances: Collection[str], *, now: float) -> ProbeTurn:
    """
    Args:
        scope: By the name under which all machines know it.
        instances: Machines that are known; never empty.
        now: On the server's clock.
    """
    number = math.floor(now / TURN_S)

    def digest(instance: str) -> bytes:
        return hashlib.sha256(f"{number}\0{scope}\0{instance}".encode()).digest()

    return ProbeTurn(
        instance=max(instances, key=lambda one: (digest(one), one)),
        ends_in_s=(number + 1) * TURN_S - now,
    )


# Findings of other machines become health of this one.


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
    """Return a mark that others know and that counts more than an outage of this machine alone."""
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
    """
    Return what the others lack of what this machine knows: after an outage, or where they lost it.
    """
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
    """Return whether a mark of others began before this machine had an answer."""
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
    """Return whether a trial is made by another machine."""
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
    """The message of a changed scope to the other machines."""

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
