"""Tables of single features: [gateway], [interactive], [notify], [opencode] and [share]."""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from msgspec import Struct, field, structs

from fallbackd.backends import ENDPOINTS, http_calls
from fallbackd.backends.spec import Options
from fallbackd.config.fields import Say, guess, in_force, join, read, show
from fallbackd.config.read_backends import Backends
from fallbackd.config.schema import (
    Gateway,
    Notify,
    OpencodeTable,
    ServerTable,
    ShareTable,
)
from fallbackd.core.policy import Backend


def check_held(gateway: Gateway, known: Collection[str], say: Say) -> None:
    """
    Args:
        known: Names of chains, roles and backends.
    """
    for name in gateway.hold_whole:
        if name not in known:
            near = guess(name, known)
            say(
                "gateway.hold_whole",
                f"{show(name)} is neither a chain nor a role; it has no effect.{near}",
            )


def without_circles(gateway: Gateway, found: Backends, say: Say) -> Backends:
    """Nothing is sent to a backend whose address is the gateway's own: it would ask itself."""
    if not gateway.enabled:
        return found
    backends, options = dict(found.backends), dict(found.options)
    for backend in found.backends.values():
        if backend.lacks is not None or not _is_own(gateway, backend, options[backend.id]):
            continue
        here = join(join("backends", backend.id), "base_url")
        lacks = f"its address is that of the gateway (port {gateway.port}), and what it is asked"
        lacks += f" would come back: set {here} to the provider's address, or [gateway] port to"
        lacks += " another"
        say(here, f"{lacks}. Until then nothing is sent.")
        backends[backend.id] = structs.replace(backend, lacks=lacks)
        options[backend.id] = structs.replace(options[backend.id], lacks=lacks)
    return structs.replace(found, backends=backends, options=options)


def _is_own(gateway: Gateway, backend: Backend, options: Options) -> bool:
    """Its address was accepted, or is the one that its kind has by itself."""
    endpoint = ENDPOINTS.get(backend.kind)
    if endpoint is None:
        return False
    parts = urlsplit(options.base_url or endpoint.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return port == gateway.port and http_calls.is_loopback(parts.hostname or "")


_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1")


def read_notify(raw: object, say: Say) -> Notify:
    given = in_force(raw, Notify(), "notify", say, hints=_HINTS)
    if given.url is not None and (why := _why_not(given.url)) is not None:
        # Never shown: it may contain a token.
        say("notify.url", f"{why}; it is left out.")
        return structs.replace(given, url=None)
    return given


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


_BAD = re.compile(r"[^\w.-]")
REDIS = "redis>=8.1,<9"
"""What the extra `share` of the project names."""
_IS_PIPX = f"{os.sep}pipx{os.sep}venvs{os.sep}" in sys.prefix
INSTALL = (
    f"pipx inject fallbackd '{REDIS}'" if _IS_PIPX else f"{sys.executable} -m pip install '{REDIS}'"
)
"""Into the environment that this daemon runs in. Its name on the index is not ours."""


class ShareConfig(Struct, frozen=True, kw_only=True):
    group: str
    url_env: str
    """Name of the variable that holds the address of the server, with its password."""
    machine: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    group_secret_env: str | None = None
    insecure: bool = False
    """Plain connections to other hosts are wanted."""


def read_share(raw: object, environ: Mapping[str, str], say: Say) -> ShareConfig | None:
    """Read `[share]`; None: without a group and the variable of an address, nothing is shared."""
    given = read(raw, ShareTable, "share", say)
    if "group" not in given or "url_env" not in given:
        missing = "group" if "group" not in given else "url_env"
        say(
            "share",
            f'needs {missing}; nothing is shared. Write: group = "home" and '
            'url_env = "FALLBACKD_SHARE_URL".',
        )
        return None
    machine = given.pop("machine", None) or _BAD.sub("-", socket.gethostname())[:64] or "machine"
    found = ShareConfig(machine=machine, **given)
    if find_spec("redis") is None:
        say("share", f"the client for Valkey and Redis is missing; install it with: {INSTALL}.")
    url = environ.get(found.url_env)
    if url is None:
        return found  # said where it matters: the file may be checked in another environment
    if (why := trouble_of(url)) is not None:
        say("share.url_env", f"the variable {found.url_env} {why}.")
    elif not found.insecure and is_exposed(url):
        say("share.url_env", plain_words(found.url_env) + ".")
    return found


def trouble_of(url: str) -> str | None:
    """Return the fault of an address, without repeating it: it holds a password."""
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        return "holds no address; it has to be like rediss://user:password@host:6380/0"
    is_network = parts.scheme in ("redis", "rediss") and bool(parts.hostname)
    is_socket = parts.scheme == "unix" and parts.path.startswith("/")
    if not port_is_good or not (is_network or is_socket):
        return "holds no address; it has to be like rediss://user:password@host:6380/0"
    return None


def is_exposed(url: str) -> bool:
    """Return whether the connection can be intercepted, and machines be impersonated on it."""
    parts = urlsplit(url)
    if parts.scheme != "redis":
        return False
    host = parts.hostname or ""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def plain_words(variable: str) -> str:
    return (
        f"the address in {variable} is not encrypted, so its password can be read on the way; "
        "use rediss://, or write insecure = true where the network itself is encrypted"
    )
