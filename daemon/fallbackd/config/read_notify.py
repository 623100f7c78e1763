"""`[notify]`: which events are announced outside of the terminal, and how."""

import re
from urllib.parse import urlsplit

from msgspec import Struct

from fallbackd.config.fields import Say, read
from fallbackd.config.schema import NOTIFY_EVENTS, NotifyEvent, NotifyTable

_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1")


class Notify(Struct, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()
    """Empty: nothing is run."""
    url: str | None = None
    """None: nothing is posted."""
    events: tuple[NotifyEvent, ...] = NOTIFY_EVENTS
    finished_after_s: float | None = None
    """None: the end of work is none of the events."""
    include_text: bool = False
    repeat_after_s: float = 600.0
    max_per_hour: int = 30


def read_notify(raw: object, say: Say) -> Notify:
    plain = Notify()
    given = read(
        raw, NotifyTable, "notify", say, in_use=lambda name: getattr(plain, name), hints=_HINTS
    )
    url = given.get("url")
    if url is not None and (why := _why_not(url)) is not None:
        # Never shown: it may contain a token.
        say("notify.url", f"{why}; it is left out.")
        del given["url"]
    return Notify(**given)


_HINTS = {"command": 'must be a list of arguments, such as ["notify-send", "{title}", "{text}"]'}


def _why_not(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an address like https://example.com/hook"
    if parts.username or parts.password:
        return "must hold no user and no password"
    if parts.scheme == "http" and not _LOOPBACK.fullmatch(host):
        return "must begin with https:// unless it is on this machine"
    return None
