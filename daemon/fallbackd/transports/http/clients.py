"""
The HTTP clients behind all requests: one pool of connections for each way to judge certificates.

Proxies and CA files come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`); what is
on loopback is never asked through a proxy. Redirects, retries and cookies are off: a cookie would
carry what one credential was given into the calls of another.
"""

import re
import ssl
from typing import TYPE_CHECKING

import anyio

from fallbackd.core.protocol import Tls
from fallbackd.transports.http.route import proxy_of
from fallbackd.transports.http.tls import context_of, stamps

if TYPE_CHECKING:
    import httpx2

KEPT = 64
"""Idle connections, for some seconds: as many as a busy host has calls under way."""
CLOSE_LIMIT_S = 5.0
"""For the farewell of a connection (TLS close); it is dropped after that."""

LOOPBACK = re.compile(r"https?://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?:[:/?#]|$)", re.I)


class Clients:
    """
    Clients by where they go and their TLS settings, made with the first request.

    The import of the library takes 60 ms.

    A certificate that was renewed on disk makes a new client; requests under way keep theirs.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[object, ...], httpx2.AsyncClient] = {}

    def find(
        self, url: str, tls: Tls | None, *, keeps_connections: bool = True
    ) -> "httpx2.AsyncClient":
        """
        Args:
            url: What shall be asked: on loopback even a proxy that cannot be used does not matter.
            keeps_connections: False: each request leaves over a connection of its own.

        Raises:
            TlsFiles: A certificate or key that cannot be read.
            ValueError: A proxy in the environment that cannot be used.
        """
        from http.cookiejar import CookieJar, DefaultCookiePolicy

        import httpx2

        is_direct = bool(LOOPBACK.match(url))
        has_tls = not url.lower().startswith("http://")
        proxy = None if is_direct else proxy_of(url)
        key = (keeps_connections, proxy, has_tls, tls, *stamps(tls))
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = httpx2.AsyncClient(
                # No bound on connections: the engine bounds attempts, and a bound here would
                # make one attempt wait for another's slow stream.
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=KEPT if keeps_connections else 0
                ),
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                # Loading the certificates of the machine takes longer than a call on loopback.
                verify=context_of(tls or Tls()) if has_tls or tls is not None else _no_tls(),
                proxy=proxy,
                trust_env=False,
            )
        return client

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await client.aclose()


def _no_tls() -> ssl.SSLContext:
    """For what never speaks it."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
