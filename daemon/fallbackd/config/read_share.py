"""`[share]`: the group of machines that knows the same limits."""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from msgspec import Struct

from fallbackd.config.fields import Say, read
from fallbackd.config.schema import ShareTable

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
    """None: without a group and the variable of an address, nothing is shared."""
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
    """What is wrong with an address, without repeating it: it holds a password."""
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
    """Whether the connection can be intercepted, and machines be impersonated on it."""
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
