"""The opencode servers that are watched, as far as callers may ask for them."""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from fallbackd.core.opencode.turns import Redirect


class BadServer(Exception):
    """An address that cannot be taken. Says what to give instead."""


class NotWatched(Exception):
    """An opencode that works for an attempt: the engine moves it on."""

    def __init__(self) -> None:
        super().__init__("this opencode works for a delegation, which fails over by itself")


class ServerState(Struct, frozen=True, kw_only=True):
    url: str
    is_up: bool
    is_announced: bool
    version: str | None = None
    problem: str = ""
    is_refused: bool = False
    """It answers, and cannot be followed until that changes: its version, its password."""


class Plugin(Protocol):
    """An opencode that is reached through the plugin at the other end of a connection."""

    @property
    def url(self) -> str: ...

    def answered(self, call: int, *, status: int, text: str, more: bool) -> None: ...

    def hear(self, event: Mapping[str, Any], *, directory: str) -> None: ...


class OpencodeServers(Protocol):
    def states(self) -> Sequence[ServerState]: ...

    async def announce(self, url: str, *, password: str | None, directory: str = "") -> bool:
        """
        A server says that it is there.

        Returns:
            Whether it was known already.

        Raises:
            BadServer: Its address cannot be taken.
            NotWatched: It works for an attempt.
        """
        ...

    def attach(
        self,
        name: str,
        connection: int,
        tell: Callable[[Mapping[str, Any]], None],
        *,
        directory: str,
        pid: int | None = None,
    ) -> bool:
        """
        An opencode that cannot be called is there, and its plugin is at the other end.

        Returns:
            Whether it was not attached already.

        Raises:
            BadServer: Too many of them.
        """
        ...

    def enter(self, url: str, connection: int, tell: Callable[[Mapping[str, Any]], None]) -> bool:
        """
        A server that can be called has a plugin too, at the other end.

        Returns:
            Whether it was not known already.
        """
        ...

    def attached(self, connection: int) -> Plugin | None: ...

    def detach(self, name: str, connection: int) -> None: ...

    async def redirect(
        self, *, server: str, session: str, directory: str, agent: str | None, model: str
    ) -> Redirect: ...

    async def warned(self, directory: str) -> tuple[str, ...]:
        """What cannot be used of the files that hold in a directory."""
        ...


def is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.scheme != "http" or port is None or parts.username or parts.query or parts.fragment:
        return False
    if parts.path not in ("", "/"):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
