"""Which way one request took: over a new connection or an old one, straight or through a proxy."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx2

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
    """What to say where requests to providers cannot leave; None: they can."""
    try:
        proxy_of("https://provider.invalid/")
    except ProxyUnreachable as error:
        return str(error)
    return None


class Route:
    """Hears the trace of one request (the `trace` extension of the library)."""

    def __init__(self) -> None:
        self._place: tuple[str, int] | None = None
        """Where the last connection was opened to."""
        self._is_connected = False

    async def hear(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith("connect_tcp.started"):
            self._place = str(info["host"]).lower(), int(info["port"])
            self._is_connected = False
        elif name.endswith("connect_tcp.complete"):
            self._is_connected = True

    @property
    def is_reused(self) -> bool:
        """It left over a connection that was there before, or not at all."""
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
