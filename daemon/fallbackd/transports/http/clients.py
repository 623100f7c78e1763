"""
HTTP clients of the requests that do not go directly: one pool of connections for each way to judge
certificates.

Proxies and CA files come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`); what is
on loopback is never asked through a proxy. Redirects, retries and cookies are off: a cookie would
carry what one credential was given into the calls of another.
"""

import os
import re
import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from fallbackd.core.protocol import Tls

if TYPE_CHECKING:
    import httpx2


# --- certificates --------------------------------------------------------------------------------
# How certificates are judged, and which one is shown.


class TlsFiles(Exception):
    """A file that `tls_*` names cannot be used. The text says which one and why."""


def stamps(tls: Tls | None) -> tuple[int, ...]:
    """Return when the files were changed; 0 for one that is not there."""
    if tls is None:
        return ()
    found = []
    for path in (tls.ca_file, tls.client_cert, tls.client_key):
        if path is not None:
            try:
                found.append(Path(path).expanduser().stat().st_mtime_ns)
            except OSError:
                found.append(0)
    return tuple(found)


def context_of(tls: Tls) -> ssl.SSLContext:
    """
    Raises:
        TlsFiles: A certificate or key that cannot be read.
    """
    import httpx2

    if tls.ca_file is None:
        context = httpx2.create_ssl_context()
    else:
        path = _readable("tls_ca_file", tls.ca_file)
        try:
            context = ssl.create_default_context(cafile=path)
        except (OSError, ValueError) as error:
            raise TlsFiles(f"tls_ca_file {tls.ca_file}: no certificates in PEM form") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert is not None:
        cert = _readable("tls_client_cert", tls.client_cert)
        key = _readable("tls_client_key", tls.client_key) if tls.client_key else None
        try:
            # An empty password keeps OpenSSL from asking for one on a terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            names = " and ".join(one for one in (tls.client_cert, tls.client_key) if one)
            raise TlsFiles(
                f"tls_client_cert {names}: no certificate with its key, without a password"
            ) from error
    return context


def _readable(name: str, path: str) -> str:
    full = os.path.expanduser(path)
    try:
        with open(full, "rb"):
            return full
    except OSError as error:
        raise TlsFiles(f"{name} {path}: {error.strerror or error}") from error


# --- the way of a request ------------------------------------------------------------------------
# Which way one request took: over a new connection or an old one, straight or through a proxy.

_DEFAULT_PORTS = {"http": 80, "https": 443}

PROXY_LOGIN = "ProxyLogin"
PROXY_REFUSED = "ProxyRefused"
PROXY_UNREACHABLE = "ProxyUnreachable"
"""Ours, in the place of the library's names: what failed is the way to the provider."""

_CURE = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment of the daemon"


class ProxyUnreachable(ValueError):
    """The proxy of the environment is one that cannot be spoken to."""


def proxy_of(url: str) -> str | None:
    """
    The proxy through which a request leaves, by the environment; None: it leaves straight.

    A variable for the scheme of the address goes before ALL_PROXY.

    Raises:
        ProxyUnreachable: It is a SOCKS proxy, without the package that speaks to one.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to load, and rarely needed

    try:
        parts = urlsplit(url)
    except ValueError:
        return None  # the client says what is wrong with it
    known = getproxies()
    proxy = known.get(parts.scheme.lower()) or known.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    if "://" not in proxy:
        return f"http://{proxy}"
    if proxy.lower().startswith("socks") and find_spec("socksio") is None:
        raise ProxyUnreachable(socks_text(parts.scheme.upper()))
    return proxy


def socks_text(scheme: str) -> str:
    return (
        f"requests over {scheme} would leave through a SOCKS proxy (ALL_PROXY or {scheme}_PROXY),"
        f" for which the package socksio is missing: set {scheme}_PROXY to an HTTP proxy in the"
        " environment of the daemon, or install it: pipx inject fallbackd socksio"
    )


def socks_trouble() -> str | None:
    """Say why requests to providers cannot leave; None: they can."""
    try:
        proxy_of("https://provider.invalid/")
    except ProxyUnreachable as error:
        return str(error)
    return None


class Route:
    """Hears the trace of one request (the `trace` extension of the library)."""

    def __init__(self) -> None:
        self._place: tuple[str, int] | None = None
        """Place that the last connection was opened to."""
        self._is_connected = False

    async def hear(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith("connect_tcp.started"):
            self._place = str(info["host"]).lower(), int(info["port"])
            self._is_connected = False
        elif name.endswith("connect_tcp.complete"):
            self._is_connected = True

    @property
    def is_reused(self) -> bool:
        """Return whether it left over a connection that was there before, or not at all."""
        return self._place is None

    def proxy_problem(self, error: Exception, request: "httpx2.Request") -> tuple[str, str] | None:
        """(name, what happened) where a proxy is to blame; None: it is the provider's."""
        import httpx2

        url = request.url
        target = url.raw_host.decode("ascii"), url.port or _DEFAULT_PORTS.get(url.scheme, 0)
        if self._place is None or self._place == target:
            return None
        host, port = self._place
        proxy = f"the proxy {host}:{port}"
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            if self._is_connected:
                return None  # it is there, and the provider behind it failed
            return PROXY_UNREACHABLE, f"{proxy} cannot be reached: {_CURE}"
        if not isinstance(error, httpx2.ProxyError):
            return None
        said = str(error)
        if said.startswith("407"):
            return PROXY_LOGIN, f"{proxy} wants another login: {_CURE}"
        # With these the proxy says that the provider does not answer.
        if said.startswith(("502", "503", "504")):
            return None
        return PROXY_REFUSED, f"{proxy} refuses to connect to {target[0]} ({said}): {_CURE}"


# --- clients -------------------------------------------------------------------------------------

KEPT = 64
"""Idle connections, for some seconds: as many as a busy host has calls under way."""
CLOSE_LIMIT_S = 5.0
"""Limit of the farewell of a connection (TLS close); it is dropped after that."""

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
    """Make a context for what never speaks it."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
