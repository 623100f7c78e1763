"""The gateway while it is enabled: its listeners, its token, and what is wrong with them."""

import errno
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import structlog

from fallbackd.api.host import Trouble
from fallbackd.app.places import Places
from fallbackd.config.schema import Gateway
from fallbackd.core.authority import Authority
from fallbackd.engine.api import Engine
from fallbackd.fronts.gateway.front import token_for
from fallbackd.fronts.gateway.patience import Bounds, Rules
from fallbackd.lib import atomicfile, privatefile
from fallbackd.ports.transport import PassOn
from fallbackd_client.paths import reachable

if TYPE_CHECKING:
    from fallbackd.fronts.gateway.front import GatewayFront

log = structlog.get_logger("gateway")

BACKLOG = 128
MIB = 1024 * 1024
AGAIN_S = 10.0
"""A port that is taken is tried again this often."""
MAX_TOKEN_BYTES = 200
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class GatewayService:
    """
    Args:
        authority_of: What the process at the other end of a Unix connection may ask.
        authority_at: The same of TCP; None: it is no process of an attempt.
    """

    def __init__(
        self,
        engine: Engine,
        pass_on: PassOn,
        places: Places,
        tokens: "Tokens",
        authority_of: Callable[[socket.socket], Authority],
        authority_at: Callable[[socket.socket], Awaitable[Authority | None]],
    ) -> None:
        self._engine = engine
        self._pass_on = pass_on
        self._places = places
        self._tokens = tokens
        self._authority_of, self._authority_at = authority_of, authority_at
        self._wanted = Gateway()
        self._front: GatewayFront | None = None
        """Kept while it is enabled or not: it knows who made which response."""
        self._changed = anyio.Event()
        self._problem: str | None = None

    def configure(self, wanted: Gateway) -> None:
        before, self._wanted = self._wanted, wanted
        self._tokens.are_used = wanted.enabled
        if (before.enabled, before.port) != (wanted.enabled, wanted.port):
            self._changed.set()
        self._follow()

    def _follow(self) -> None:
        """Calls that are under way keep what they began with."""
        wanted = self._wanted
        if self._front is None:
            return
        self._front.configure(
            Rules(
                hold=wanted.hold,
                hold_whole=frozenset(wanted.hold_whole),
                hold_s=wanted.hold_s,
                commit_on_reasoning=wanted.commit_on_reasoning,
                keepalive_s=wanted.keepalive_s,
                allow_metered=wanted.allow_metered,
            ),
            Bounds(
                max_body_bytes=wanted.max_body_mb * MIB, max_memory_bytes=wanted.max_memory_mb * MIB
            ),
        )

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        if self._problem is None:
            return ()
        return (Trouble(kind="gateway", message=self._problem),)

    async def run(self) -> None:
        while True:
            self._changed = anyio.Event()
            async with anyio.create_task_group() as tasks:
                if self._wanted.enabled:
                    tasks.start_soon(self._serve, self._wanted.port)
                await self._changed.wait()
                tasks.cancel_scope.cancel()
            self._problem = None

    async def _serve(self, port: int) -> None:
        from fallbackd.fronts.gateway.front import GatewayFront  # httptools, where it is enabled

        if self._front is None:
            self._front = GatewayFront(
                self._engine,
                self._pass_on,
                token=self._tokens.of_persons,
                allowed_uids=frozenset({os.geteuid(), 0}),
                authority_of=self._authority_of,
                authority_at=self._authority_at,
                makers=self._places.gateway_makers,
            )
            self._follow()
        front = self._front
        while True:
            try:
                make_token(self._places.gateway_token)
                listeners = open_listeners(port, self._places.gateway_socket)
            except OSError as error:
                why = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
                problem = f"the gateway cannot listen at port {port}: {why}"
                if problem != self._problem:
                    log.error("gateway.not_listening", port=port, error=why)
                self._problem = problem
                await anyio.sleep(AGAIN_S)
                continue
            self._problem = None
            log.info("gateway.listening", port=port, socket=self._places.gateway_socket)
            async with anyio.create_task_group() as tasks:
                for listener in listeners:
                    tasks.start_soon(front.serve, listener)


def open_listeners(port: int, path: str) -> list[socket.socket]:
    """
    Listen on each loopback address of the machine and, last, on the Unix socket.

    Raises:
        OSError: The port is taken, or a socket cannot be made. Its filename says which.
    """
    found: list[socket.socket] = []
    try:
        for family, host in _LOOPBACK:
            try:
                found.append(_tcp_listener(family, host, port))
            except OSError as error:
                # Where another program has the port of ::1, it would be sent the token of callers
                # that find it under localhost.
                if family == socket.AF_INET6 and error.errno in _NO_IPV6:
                    continue
                raise OSError(error.errno, error.strerror, host) from error
        found.append(_unix_listener(path))
        for listener in found:
            listener.listen(BACKLOG)
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found


def _tcp_listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _unix_listener(path: str) -> socket.socket:
    """The state directory is private and has one daemon: what is there is left over."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        with reachable(path) as address:
            listener.bind(address)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def make_token(path: str) -> None:
    """Keep the token that is there; else make one, for this user alone."""
    if read_token(path) is None:
        atomicfile.write(path, secrets.token_urlsafe(32).encode() + b"\n")


class Tokens:
    """The file is looked at with each request: who replaces it is obeyed at once."""

    def __init__(self, path: str) -> None:
        self.are_used = False
        """The gateway is enabled."""
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._token: str | None = None

    def of_persons(self) -> str | None:
        try:
            now = os.lstat(self._path)
        except OSError:
            return None
        seen = now.st_ino, now.st_mtime_ns, now.st_ctime_ns, now.st_size
        if seen != self._seen:
            self._seen, self._token = seen, read_token(self._path)
        return self._token

    def of_attempt(self, attempt: str) -> str | None:
        """Return the token that an attempt sends; None: the gateway is off."""
        token = self.of_persons() if self.are_used else None
        return None if token is None else token_for(attempt, token)


def read_token(path: str) -> str | None:
    try:
        text = privatefile.read_file(path, max_bytes=MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text or None
