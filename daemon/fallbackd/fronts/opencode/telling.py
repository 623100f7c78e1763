"""Notices of sessions, as short messages in the interface of their opencode server."""

import structlog

from fallbackd.core.changes import Journaled
from fallbackd.engine.live import Progress
from fallbackd.ports.opencode import Link

log = structlog.get_logger("opencode")

_SHOWN = {
    "fallback": ("Model fallback", "warning", 6000),
    "recovered": ("Model recovered", "info", 5000),
    "outage": ("No model available", "error", 10_000),
    "failed": ("Model fallback failed", "error", 15_000),
}
"""Title, kind and milliseconds by notice."""
_LONGEST_S = max(ms for *_, ms in _SHOWN.values()) / 1000
_LEVELS = {"warning": "warn", "info": "info", "error": "error"}


class Notice:
    def __init__(self, told: Journaled, *, now: float) -> None:
        fields = told.note.fields
        self.at = now
        self.session = told.note.session or ""
        self.kind = str(fields.get("notice"))
        self.left = str(fields.get("from") or "")
        self.to = str(fields.get("to") or "")
        self.title, self.variant, self.duration_ms = _SHOWN.get(self.kind, _SHOWN["fallback"])
        self.text = str(fields.get("text") or "")


def notice_of(told: Journaled | Progress, *, now: float) -> Notice | None:
    if isinstance(told, Progress) or told.note.kind != "session.notice":
        return None
    return Notice(told, now=now)


class Toasts:
    """
    Tells which notices are shown: many sessions of a server have the same one at once, and a
    toast that is still on the screen says it for all of them.
    """

    def __init__(self) -> None:
        self._recovered: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, ...], tuple[str, float]] = {}
        """Session and end of the last toast, by server, directory and what it says."""

    def is_news(self, server: str, directory: str, notice: Notice) -> bool:
        """A recovery is shown once per server and model, until the model is left again."""
        if notice.kind == "fallback":
            self._recovered = {one for one in self._recovered if one[1] != notice.left}
        if notice.kind == "recovered":
            is_news = (server, notice.to) not in self._recovered
            self._recovered.add((server, notice.to))
            return is_news
        latest_at = notice.at + _LONGEST_S  # a clock that was set back leaves later ends
        self._shown = {k: one for k, one in self._shown.items() if notice.at < one[1] <= latest_at}
        words = notice.text if notice.kind == "failed" else ""  # others state how long it takes
        key = (server, directory, notice.kind, notice.left, notice.to, words)
        until_at = notice.at + notice.duration_ms / 1000
        session, _ = self._shown.setdefault(key, (notice.session, until_at))
        return session == notice.session

    def forget(self, server: str) -> None:
        self._recovered = {one for one in self._recovered if one[0] != server}
        self._shown = {key: one for key, one in self._shown.items() if key[0] != server}


async def show(link: Link, directory: str, notice: Notice) -> None:
    """A server without an interface accepts it as well, but does not show it."""
    body = {
        "title": notice.title,
        "message": notice.text,
        "variant": notice.variant,
        "duration": notice.duration_ms,
    }
    called = await link.call("POST", "/tui/show-toast", body=body, directory=directory)
    if not called.is_good:
        log.info("notice.unshown", server=link.url, problem=called.problem)


async def write_down(link: Link, directory: str, notice: Notice) -> None:
    """Put it into the log of the server, for each session."""
    line = {
        "service": "fallbackd",
        "level": _LEVELS[notice.variant],
        "message": notice.text,
        "extra": {"session": notice.session},
    }
    await link.call("POST", "/log", body=line, directory=directory)
