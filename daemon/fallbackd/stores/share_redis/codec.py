"""Hashes of the server become records; what cannot be one is named and left alone."""

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from fallbackd.core.failures import Reason
from fallbackd.core.ids import ScopeId
from fallbackd.core.share.records import (
    MAX_AHEAD_S,
    MAX_DETAIL,
    PersonWord,
    SharedLease,
    SharedMark,
    SharedRecord,
    WordAction,
)
from fallbackd.ports.share import Card

VERSION = "1"
MAX_COUNT = 1000
MAX_CARDS = 200
MAX_MISSED = 20
_STATES = ("rate_limited", "broken")
_ACTIONS = ("mark", "clear", "pause", "resume")
_DAY_S = 86_400.0


class BadRecord(Exception):
    """It was written by something else, or by a newer version: says what is wrong."""


def pairs(flat: Any) -> dict[str, str]:  # as the server gives it
    """An answer of HGETALL. Bytes that are no text become replacement characters."""
    words = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in flat]
    return dict(zip(words[::2], words[1::2], strict=False))


def record_of(
    scope: ScopeId, fields: Mapping[str, str], words: Mapping[str, str], *, now: float
) -> SharedRecord:
    """
    Raises:
        BadRecord: Not as a whole by this version's rules.
    """
    for found in (fields, words):
        if (version := found.get("v", VERSION)) != VERSION:
            raise BadRecord(f"version {_shown(version)} is newer than this fallbackd")
    try:
        return SharedRecord(
            scope=scope,
            marks=_marks(fields, now=now),
            proven_at=_instant(fields.get("proven"), now=now),
            word=_word(words, now=now),
            lease=_lease(fields, now=now),
            gen=int(fields.get("gen", "0")),
        )
    except (ValueError, OverflowError) as error:
        raise BadRecord(str(error)) from None


def _marks(fields: Mapping[str, str], *, now: float) -> frozenset[SharedMark]:
    state = fields.get("state", "")
    if not state:
        return frozenset()
    if state not in _STATES:
        raise ValueError(f"state {_shown(state)}")
    since_at = _instant(fields.get("since"), now=now)
    if since_at is None:
        raise ValueError("a mark without a beginning")
    until_at = _instant(fields.get("until"), now=now)
    rests_at = _instant(fields.get("cooldown_until"), now=now)
    cooldown_s = 0.0
    if until_at is not None and rests_at is not None:
        cooldown_s = min(max(0.0, rests_at - until_at), _DAY_S)
    return frozenset(
        {
            SharedMark(
                state=cast(Literal["rate_limited", "broken"], state),
                reason=Reason(fields.get("reason", "")),
                detail=_text(fields.get("detail")) or None,
                since_at=since_at,
                until_at=until_at,
                cooldown_s=cooldown_s,
                count=min(max(1, int(fields.get("count", "1"))), MAX_COUNT),
                stated=fields.get("stated") == "1",
                source=_text(fields.get("source")),
            )
        }
    )


def _word(words: Mapping[str, str], *, now: float) -> PersonWord | None:
    if not words:
        return None
    action, state = words.get("action", ""), words.get("state") or "broken"
    at = _instant(words.get("at"), now=now)
    if action not in _ACTIONS or state not in _STATES or at is None:
        raise ValueError(f"a manual override {_shown(action)}")
    return PersonWord(
        id=_text(words.get("id")),
        action=cast(WordAction, action),
        at=at,
        until_at=_instant(words.get("until"), now=now, bounded=False),
        state=cast(Literal["rate_limited", "broken"], state),
        reason=Reason(words.get("reason") or Reason.MANUAL.value),
        note=_text(words.get("note")),
        source=_text(words.get("source")),
    )


def _lease(fields: Mapping[str, str], *, now: float) -> SharedLease | None:
    owner, until_at = fields.get("lease_owner"), _instant(fields.get("lease_until"), now=now)
    if not owner or until_at is None:
        return None
    return SharedLease(owner=_text(owner), until_at=until_at)


def _instant(text: str | None, *, now: float, bounded: bool = True) -> float | None:
    """Seconds of the server's clock. A time beyond every policy is not believed."""
    if not text:
        return None
    at = float(int(text)) / 1000
    if at < 0 or (bounded and at > now + MAX_AHEAD_S + _DAY_S):
        raise ValueError(f"a time {_shown(text)}")
    return at


def _text(value: str | None) -> str:
    """Words of another machine: short, and nothing that moves a cursor."""
    text = (value or "")[:MAX_DETAIL]
    return "".join(one if one.isprintable() else "?" for one in text)


def _shown(value: str) -> str:
    return json.dumps(_text(value)[:40])


def card_text(card: Card) -> str:
    return json.dumps(
        {
            "instance": card.instance,
            "version": card.version,
            "pid": card.pid,
            "boot": card.boot,
            "missed": card.missed[:MAX_MISSED],
        }
    )


def cards_of(found: Mapping[str, str], *, now: float) -> tuple[Card, ...]:
    """Last seen first. Whatever is no card is left out."""
    cards: list[Card] = []
    for name, text in found.items():
        at, _, rest = text.partition(" ")
        try:
            told = json.loads(rest)
            cards.append(
                Card(
                    name=_text(name),
                    instance=_text(str(told["instance"])),
                    version=_text(str(told.get("version", ""))),
                    pid=int(told.get("pid", 0)),
                    boot=_text(str(told.get("boot", ""))),
                    missed=tuple(_text(str(one)) for one in told.get("missed", ())[:MAX_MISSED]),
                    seen_ago_s=max(0.0, now - int(at) / 1000),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return tuple(sorted(cards, key=lambda one: (one.seen_ago_s, one.name))[:MAX_CARDS])
