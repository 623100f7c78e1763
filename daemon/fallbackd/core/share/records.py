"""
What machines tell each other of one scope, and how two such records become one.

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
"""

from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.failures import Reason
from fallbackd.core.ids import ScopeId

FOREVER = float("inf")
LEASE_PREFIX = "peer-"
"""Of the attempt in whose name a scope is on trial at another machine."""
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
    """What a person said on one machine for all of them."""

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
    """How often the arbiter's record was changed; the same holds of it."""


def join(left: SharedRecord, right: SharedRecord) -> SharedRecord:
    """What both know together. The lease is that of `right`, the arbiter's."""
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
    """The same on a clock that is ahead by `by_s`, under another name."""

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
