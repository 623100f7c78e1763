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
_LEVELS = {"warning": "warn", "info": "info", "error": "error"}


class Notice:
    def __init__(self, told: Journaled) -> None:
        fields = told.note.fields
        self.session = told.note.session or ""
        self.kind = str(fields.get("notice"))
        self.left = str(fields.get("from") or "")
        self.to = str(fields.get("to") or "")
        self.title, self.variant, self.duration_ms = _SHOWN.get(self.kind, _SHOWN["fallback"])
        self.text = str(fields.get("text") or "")


def notice_of(told: Journaled | Progress) -> Notice | None:
    if isinstance(told, Progress) or told.note.kind != "session.notice":
        return None
    return Notice(told)


class Recoveries:
    """A model recovers for all sessions of a server at once, and each of them has a notice."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def is_news(self, server: str, notice: Notice) -> bool:
        """Once per server and model, until the model is left again."""
        if notice.kind == "fallback":
            self._shown = {one for one in self._shown if one[1] != notice.left}
        if notice.kind != "recovered":
            return True
        is_news = (server, notice.to) not in self._shown
        self._shown.add((server, notice.to))
        return is_news

    def forget(self, server: str) -> None:
        self._shown = {one for one in self._shown if one[0] != server}


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
    line = {
        "service": "fallbackd",
        "level": _LEVELS[notice.variant],
        "message": notice.text,
        "extra": {"session": notice.session},
    }
    await link.call("POST", "/log", body=line, directory=directory)
