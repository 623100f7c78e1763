"""One connection to the server. After anything but an answer in time it is closed, never reused."""

import ssl
from collections.abc import Sequence
from typing import Any

import anyio
from msgspec import Struct
from redis import exceptions
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fallbackd.ports.share import ShareAway, ShareRefused

CONNECT_S = 5.0
CLIENT_NAME = "fallbackd"


class ServerError(Exception):
    """The server's answer to one command is an error: says which."""


class ShareAddress(Struct, frozen=True, kw_only=True):
    url: str
    """Holds a password: never shown."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __repr__(self) -> str:
        return "ShareAddress(...)"


class ShareLink:
    """Commands one after the other, each bounded in time."""

    def __init__(self, address: ShareAddress) -> None:
        self._address = address
        self._connection: AbstractConnection | None = None
        self._lock = anyio.Lock()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def call(
        self, commands: Sequence[Sequence[str | int]], *, limit_s: float
    ) -> list[Any]:  # answers of the server; an error is a `ServerError` in its place
        """
        Send commands at once and take their answers.

        Raises:
            ShareAway, ShareRefused
        """
        try:
            with anyio.fail_after(limit_s):
                async with self._lock:
                    return await self._exchange(commands)
        except TimeoutError:
            raise ShareAway(f"no answer within {limit_s * 1000:.0f} ms") from None

    async def _exchange(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        is_whole = False
        try:
            connection = await self._connected()
            await connection.send_packed_command(connection.pack_commands(commands))
            answers = [await self._answer(connection) for _ in commands]
            is_whole = True
            return answers
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise ShareRefused(_words(error)) from None
        except exceptions.RedisError as error:
            raise ShareAway(_words(error)) from None
        except (OSError, ssl.SSLError) as error:
            raise ShareAway(_words(error)) from None
        finally:
            if not is_whole:
                await self.aclose()

    async def _answer(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response(timeout=None)
        except (exceptions.AuthenticationError, exceptions.NoPermissionError):
            raise
        except exceptions.ConnectionError:
            raise  # also "loading" and "max clients": it serves no client now
        except exceptions.ResponseError as error:
            return ServerError(_words(error))

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            found = connection_to(self._address)
            self._connection = found
            await found.connect()  # type: ignore[no-untyped-call]
        return self._connection

    async def aclose(self) -> None:
        """Whatever is on its way on this connection belongs to nothing that is still asked."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)


def connection_to(address: ShareAddress) -> AbstractConnection:
    """
    Raises:
        ValueError: No address of a server.
    """
    found: dict[str, Any] = dict(parse_url(address.url))
    found.pop("connection_class", None)
    known: dict[str, Any] = {
        key: found[key]
        for key in ("host", "port", "db", "username", "password", "path")
        if key in found
    }
    plain: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,
        "protocol": 2,
        "client_name": CLIENT_NAME,
        "driver_info": None,
        **known,
    }
    if address.url.startswith("unix:"):
        return UnixDomainSocketConnection(**plain)
    if address.url.startswith("rediss:"):
        return SSLConnection(
            ssl_ca_certs=address.ca_file,
            ssl_certfile=address.cert_file,
            ssl_keyfile=address.key_file,
            ssl_min_version=ssl.TLSVersion.TLSv1_2,
            **plain,
        )
    return Connection(**plain)


def _words(error: BaseException) -> str:
    """What a library says of a failed connection names the address; passwords it never names."""
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__
