"""
Who may ask. A port on loopback can be reached by every user of the machine, and through a browser
by every page that it shows.
"""

import hmac
from collections.abc import Sequence
from urllib.parse import parse_qs

from msgspec import Struct

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Denied(Struct, frozen=True):
    status: int
    message: str


def deny(
    method: str,
    headers: Headers,
    query: str,
    *,
    port: int | None,
    token: str | None,
    is_open: bool = False,
) -> Denied | None:
    """
    Why a request is not answered; None: it is.

    Args:
        port: Where it came in; None: through the Unix socket, whose mode protects it.
        is_open: It says nothing that needs protection.
    """
    named = dict(headers)
    if port is not None and named.get("host", "").lower() not in {
        f"{one}:{port}" for one in _LOCAL
    }:
        return Denied(403, f"the Host header must be 127.0.0.1:{port} or localhost:{port}")
    if "origin" in named:
        return Denied(403, "requests of web pages are refused")
    if method == "OPTIONS":
        return Denied(405, "OPTIONS is not answered: web pages cannot use this endpoint")
    if is_open or port is None:
        return None
    given = _tokens(headers, query)
    if not given:
        return Denied(401, "no token: `fallbackd-client gateway env` prints how to send it")
    if token is None or not any(hmac.compare_digest(one, token.encode()) for one in given):
        return Denied(
            401, "the token is not the one of this endpoint: fallbackd-client gateway env"
        )
    return None


def _tokens(headers: Headers, query: str) -> list[bytes]:
    """All that may be one: a client may send a key of its own beside the token."""
    found: list[str] = []
    for name, value in headers:
        if name in ("x-api-key", "api-key", "x-goog-api-key"):
            found.append(value)
        elif name == "authorization":
            scheme, _, bearer = value.partition(" ")
            found.append(bearer.strip() if scheme.lower() == "bearer" else "")
    if query:
        found += parse_qs(query).get("key", [])
    return [one.encode() for one in found if one]


def is_json(headers: Headers) -> bool:
    kind = dict(headers).get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json"
