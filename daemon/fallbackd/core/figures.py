"""
Figures of a plan or of a key: how much of one window is used, and how long that will do.

Figures lag behind and are said by others, so they close no backend: only what a provider answers
does. A low one is a reason for an early trial, a high one may send new work elsewhere; one that is
older than `FRESH_S`, or whose window has begun anew, decides nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, structs

FRESH_S = 900.0
"""Older figures are shown as old: the plan is used elsewhere too."""
KEPT_S = 8 * 86_400.0
"""Time for which a figure is kept whose window states no end."""
NEAR_PERCENT = 80.0
"""Share from which on a window of a plan is near its end, which is an event."""
MOST_PERCENT = 200.0
"""A plan that allows more than it has goes a little beyond 100; more is no figure."""
LONGEST_WINDOW_S = 400 * 86_400.0
MOST_FIGURES = 24
"""Most figures kept of one backend, the newest ones."""
PLAN_WINDOW_S = 3600.0
"""A shorter window, or one without a length, is a pace that providers ask for, not a plan."""
_REPEATED_S = 60.0
"""A figure that says nothing new is kept again after this long."""
_SLACK_S = 300.0
"""The clocks of providers differ from ours."""

Source = Literal["headers", "event", "session", "statusline", "asked"]
Unit = Literal["percent", "requests", "tokens"]


class Figure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A statement about one window of one login."""

    used_percent: float
    window_s: float | None = None
    """Its length; None: not stated."""
    resets_at: float | None = None
    """Time when it begins anew; None: not stated."""
    unit: Unit = "percent"
    limit: float | None = None
    """Of the whole window, in `unit`; None: only the share is known."""
    left: float | None = None
    model: str | None = None
    """The model, or the vendor's word for a family of models, that it is about; None: all."""
    credential: str | None = None
    """Label of the key; None: the login of the program."""
    source: Source = "session"
    at: float = 0.0
    """Time when it was seen."""

    @property
    def is_spent(self) -> bool:
        return self.used_percent >= 100.0

    @property
    def place(self) -> tuple[object, ...]:
        """A later figure of the same place replaces it."""
        return self.window_s, self.unit, self.model, self.credential

    @property
    def is_of_plan(self) -> bool:
        return self.window_s is not None and self.window_s >= PLAN_WINDOW_S


Figures = tuple[Figure, ...]


def window_words(one: Figure) -> str:
    """`5h`, `7d opus`: the window of a figure, in a few words that stay the same."""
    words = one.unit if one.window_s is None else f"{one.window_s / 3600.0:g}h"
    if one.window_s is not None and one.window_s % 86_400.0 == 0:
        words = f"{one.window_s / 86_400.0:g}d"
    return " ".join(each for each in (words, one.model, one.credential) if each)


def is_believable(one: Figure, *, now: float) -> bool:
    """Return whether a provider can have meant a figure: headers lie, and clocks differ."""
    window_s, resets_at = one.window_s, one.resets_at
    if not 0.0 <= one.used_percent <= MOST_PERCENT:  # not a number is neither
        return False
    if window_s is not None and not 1.0 <= window_s <= LONGEST_WINDOW_S:
        return False
    if resets_at is None:
        return True
    return now - _SLACK_S <= resets_at <= now + (window_s or LONGEST_WINDOW_S) + _SLACK_S


def joined(known: Figures, news: Iterable[Figure], *, now: float) -> Figures:
    """Return the figures known after believable news; an older word never replaces a newer one."""
    found = {one.place: one for one in known if not _is_forgotten(one, now=now)}
    for one in news:
        before = found.get(one.place)
        if is_believable(one, now=now) and (before is None or before.at <= one.at):
            found.pop(one.place, None)
            found[one.place] = one
    return tuple(found.values())[-MOST_FIGURES:]


def _is_forgotten(one: Figure, *, now: float) -> bool:
    return now - one.at > KEPT_S or (one.resets_at is not None and one.resets_at <= now)


def is_news(known: Figures, one: Figure, *, now: float) -> bool:
    """Return whether a figure is worth keeping: each answer of a provider repeats its figures."""
    before = next((each for each in known if each.place == one.place), None)
    if before is None or one.at - before.at >= _REPEATED_S or one.at < before.at:
        return is_believable(one, now=now)
    is_moved = abs(one.used_percent - before.used_percent) >= 1.0
    ends = (one.resets_at or 0.0) - (before.resets_at or 0.0)
    return (is_moved or abs(ends) >= _REPEATED_S) and is_believable(one, now=now)


def is_fresh(one: Figure, *, now: float) -> bool:
    """Return whether a figure may still be acted on. A clock that was set back makes it old."""
    is_over = one.resets_at is not None and one.resets_at <= now
    return not is_over and 0.0 <= now - one.at <= FRESH_S


def pace(one: Figure) -> float | None:
    """
    Percent that are used in an hour, on average since the window began; None: not known. A window
    that has hardly begun tells no pace.
    """
    if one.resets_at is None or one.window_s is None:
        return None
    passed_s = one.at - (one.resets_at - one.window_s)
    if passed_s < one.window_s / 50.0:
        return None
    return one.used_percent / passed_s * 3600.0


def runs_out_at(one: Figure) -> float | None:
    """
    Return when nothing is left at the pace of a figure; None: not before the window begins anew,
    or not known.
    """
    hourly = pace(one)
    if not hourly or one.resets_at is None:
        return None
    at = one.at + max(0.0, 100.0 - one.used_percent) / hourly * 3600.0
    return at if at < one.resets_at else None


def nearest(
    known: Figures, percent: float, *, model: str | None, credential: str | None, now: float
) -> Figure | None:
    """
    Return the window of a plan, of those of which this share or more is used, that ends last; None:
    there is none, or what is known is old.
    """
    found = [
        one
        for one in known
        if one.is_of_plan and is_fresh(one, now=now) and one.used_percent >= percent
        if one.model in (None, model) and one.credential in (None, credential)
    ]
    return max(found, key=lambda one: one.resets_at or 0.0, default=None)


def is_low(known: Figures, news: Figures, *, now: float) -> bool:
    """Return whether a plan was just seen with enough left, and no window of it is nearly spent."""
    fresh = [one for one in news if one.is_of_plan and is_fresh(one, now=now)]
    return bool(fresh) and all(
        one.used_percent < NEAR_PERCENT
        for one in known
        if one.is_of_plan and (one.resets_at is None or one.resets_at > now)
    )


def newly_near(known: Figures, news: Iterable[Figure], *, now: float) -> Figures:
    """Windows of plans that are near their end now and were not before."""
    before: Mapping[object, Figure] = {one.place: one for one in known}
    return tuple(
        one
        for one in news
        if one.is_of_plan and is_believable(one, now=now)
        if NEAR_PERCENT <= one.used_percent < 100.0
        if not _is_near(before.get(one.place), of=one)
    )


def _is_near(known: Figure | None, *, of: Figure) -> bool:
    """Return whether a near end was already stated for the same turn of the window."""
    if known is None or known.used_percent < NEAR_PERCENT:
        return False
    if known.resets_at is None or of.resets_at is None:
        return True
    return abs(known.resets_at - of.resets_at) < PLAN_WINDOW_S


def shifted(known: Figures, by_s: float) -> Figures:
    """The wall clock was set by `by_s` seconds."""
    return tuple(
        structs.replace(
            one,
            at=one.at + by_s,
            resets_at=None if one.resets_at is None else one.resets_at + by_s,
        )
        for one in known
    )
