"""
Which events of the journal people are told of, and in which words.

Pure. Nothing of a prompt or an answer is in the words: what may be added to them is added later.
"""

from collections.abc import Iterable

from msgspec import Struct

from fallbackd.core.changes import Journaled
from fallbackd.core.failures import Reason
from fallbackd.core.health.record import Health
from fallbackd.core.policy import Backend
from fallbackd.core.records import Delegation

NEAR = 0.8
"""This part of a cap is near."""
DAY_S = 86_400.0
_BACK = ("rate_limited", "broken", "cooldown")
"""States from which a backend recovers."""
_ABSENT = (Reason.NOT_INSTALLED, Reason.NOT_CONFIGURED)


class Notification(Struct, frozen=True, kw_only=True):
    id: str
    """The same for each try to deliver it."""
    event: str
    """A `NotifyEvent`, `finished` or `test`."""
    title: str
    text: str
    at: float
    key: str
    """Equal keys say the same."""
    delegation: str | None = None
    session: str | None = None
    backend: str | None = None
    prompt: str | None = None
    """How it begins; only where text is included."""
    answer: str | None = None


def notification_of(
    entry: Journaled,
    delegation: Delegation | None,
    *,
    finished_after_s: float | None,
    near: str | None = None,
    was_absent: bool = False,
) -> Notification | None:
    """
    Args:
        delegation: The one that the event is about, if any.
        was_absent: The scope of the event was out since it was not installed or not set up.
        near: What is said of a cap that the event's backend has nearly reached.
    """
    note = entry.note
    fields = note.fields
    match note.kind:
        case "delegation.hopped" if fields.get("to"):
            reason = str(fields.get("reason") or "unknown")
            return _made(
                entry,
                "failed_over",
                "failed over",
                f"{fields.get('from')} is unavailable ({_words(reason)}); continuing with"
                f" {fields['to']}.",
                f"{fields.get('from')} {fields['to']} {reason}",
            )
        case "session.notice" if note.delegation is None and fields.get("notice") == "fallback":
            text = f"{fields.get('from')} is unavailable; continuing with {fields.get('to')}."
            key = f"{fields.get('from')} {fields.get('to')}"
            return _made(entry, "failed_over", "failed over", text, key)
        case "session.notice" if note.delegation is None and fields.get("notice") == "outage":
            text = "No model is available for a session of opencode."
            return _made(entry, "all_unavailable", "no model is available", text, "")
        case "delegation.ended" if fields.get("state") == "refused":
            if fields.get("detail") in ("outage_stop", "skipped"):
                return None
            text = "No backend in the chain is available for a delegation."
            return _made(entry, "all_unavailable", "no backend is available", text, "")
        case "delegation.ended" if delegation is not None and finished_after_s is not None:
            return _finished(entry, delegation, finished_after_s)
        case "health.moved" if fields.get("to") == "healthy" and fields.get("from") in _BACK:
            scope = str(fields.get("scope") or "")
            if was_absent or not scope.startswith("backend:"):
                return None
            name = scope.removeprefix("backend:")
            return _made(entry, "recovered", "recovered", f"{name} is available again.", name)
        case "question.opened":
            name = str(fields.get("question"))
            text = (
                f"A delegation waits for a decision. See it with: fallbackd-client questions"
                f" ({name})"
            )
            return _made(entry, "question", "a question is open", text, name)
        case "plan.near":
            name, window_s = str(fields.get("backend")), float(fields.get("window_s") or 0.0)
            window = _duration(window_s) if window_s < DAY_S else f"{window_s / DAY_S:.0f} days"
            used = float(fields.get("used_percent") or 0.0)
            text = f"{name} has used {used:.0f} % of its plan for {window}."
            return _made(entry, "limit_near", "a limit is near", text, f"{name} {window_s:.0f}")
        case "attempt.ended" if near is not None:
            return _made(entry, "limit_near", "a limit is near", near, str(note.backend))
        case _:
            return None


class Absences:
    """Scopes that are out since there is nothing there. What is installed is news to nobody."""

    def __init__(self, health: Iterable[Health]) -> None:
        self._scopes = {
            str(one.scope)
            for one in health
            if one.outage is not None and one.outage.reason in _ABSENT
        }

    def saw(self, entry: Journaled) -> bool:
        """Follow the journal. Returns whether the scope of this entry was absent before it."""
        fields = entry.note.fields
        scope = str(fields.get("scope") or "")
        was_absent = scope in self._scopes
        if entry.note.kind == "health.moved":
            is_absent = fields.get("to") == "broken" and fields.get("reason") in _ABSENT
            (self._scopes.add if is_absent else self._scopes.discard)(scope)
        return was_absent


def _finished(entry: Journaled, one: Delegation, after_s: float) -> Notification | None:
    took_s = entry.note.at - one.created_at
    if took_s < after_s:
        return None
    state = str(entry.note.fields.get("state"))
    word = {"succeeded": "finished", "cancelled": "was cancelled", "failed": "failed"}.get(
        state, f"ended ({_words(state)})"
    )
    text = f"{one.delegation} {word} on {one.served_by or one.active} after {_duration(took_s)}."
    return _made(entry, "finished", word, text, one.delegation)


def near_cap(backend: Backend, used: int) -> str | None:
    """What is said where the use of this hour is near the cap; None: it is not."""
    cap = backend.hourly_cap
    if cap is None or not NEAR * cap <= used < cap:
        return None
    return f"{backend.id} has used {used} of {cap} {backend.cap_unit} of this hour."


def _made(entry: Journaled, event: str, what: str, text: str, key: str) -> Notification:
    note = entry.note
    return Notification(
        id=f"{entry.seq}-{int(note.at)}",
        event=event,
        title=f"fallbackd: {what}",
        text=text,
        at=note.at,
        key=f"{event} {key}",
        delegation=note.delegation,
        session=note.session,
        backend=note.backend,
    )


def _words(word: str) -> str:
    return word.replace("_", " ")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
