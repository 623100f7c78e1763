"""`[opencode]`: the servers whose sessions are watched, and what holds for them."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct, field

from fallbackd.config.fields import Say, join, read, show
from fallbackd.config.schema import OpencodeTable, ServerTable


class WatchedServer(Struct, frozen=True, kw_only=True):
    url: str
    password_env: str | None = None
    """Name of the variable that holds its password."""


class Opencode(Struct, frozen=True, kw_only=True):
    enabled: bool = True
    """False: sessions are watched, and left as they are."""
    servers: tuple[WatchedServer, ...] = ()
    quotas: Mapping[str, str] = field(default_factory=dict)
    """Quota group by provider."""
    projects: bool = True
    """Whether the files of the directories of sessions are read."""
    log_path: str | None = None
    """Absolute, or beginning with `~/`; null: no log of its own."""


def read_opencode(raw: object, say: Say) -> Opencode:
    given = read(raw, OpencodeTable, "opencode", say, by_hand=frozenset({"servers"}))
    if "servers" in given:
        given["servers"] = _servers(given["servers"], say)
    path = given.get("log_path")
    if path is not None and not path.startswith(("/", "~/")):
        say("opencode.log_path", f"{show(path)}: must be an absolute path or begin with ~/.")
        del given["log_path"]
    return Opencode(**given)


def _servers(raw: object, say: Say) -> tuple[WatchedServer, ...]:
    if not isinstance(raw, list):
        say("opencode.servers", f'{show(raw)}: must be a list: ["http://127.0.0.1:4096"].')
        return ()
    found: dict[str, WatchedServer] = {}
    for number, value in enumerate(raw):
        here = join("opencode.servers", number)
        given = {"url": value} if isinstance(value, str) else read(value, ServerTable, here, say)
        url = str(given.get("url") or "").rstrip("/")
        if not _is_address(url):
            say(
                here,
                f"{show(url)}: must be an address like http://127.0.0.1:4096, without user"
                " or password; it is left out.",
            )
            continue
        found[url] = WatchedServer(url=url, password_env=given.get("password_env"))
    return tuple(found.values())


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_plain
