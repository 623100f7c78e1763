"""
Who may ask. A port on loopback can be reached by every user of the machine, and through a browser
by every page that it shows.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from msgspec import Struct

from fallbackd.core.authority import PERSON, Authority, meet

Headers = Sequence[tuple[str, str]]
"""Names in lower case."""

_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Denied(Struct, frozen=True):
    status: int
    message: str


def asks_as(
    method: str,
    headers: Headers,
    query: str,
    *,
    port: int | None,
    asker: Authority | None,
    token: str | None,
    authority_in: Callable[[str], Authority],
) -> Authority | Denied:
    """
    What the caller may ask, or why it is not answered.

    Args:
        port: Where it came in; None: through the Unix socket, whose mode protects it.
        asker: What the process at the other end may ask, which no token widens; None: its token
            alone says.
        token: Of a person.
        authority_in: What an attempt may ask.
    """
    if (denied := deny(method, headers, port=port)) is not None:
        return denied
    if asker is not None and (asker.is_person or not asker.inside):
        return asker if asker.is_person else Denied(403, f"refused: you are in {asker.place}")
    given = _tokens(headers, query)
    if not given and asker is None:
        return Denied(401, "no token: `fallbackd-client gateway env` prints how to send it")
    if token is None:
        given = []
    elif any(hmac.compare_digest(one, token.encode()) for one in given):
        return PERSON if asker is None else asker
    if asker is not None and any(_attempt_of(one, token or "") == OF_SERVERS for one in given):
        return asker
    attempts = [found for one in given if (found := _attempt_of(one, token or "")) is not None]
    named = meet(map(authority_in, attempts)) if attempts else None
    if asker is None:
        return _by_token_alone(named)
    if named is None or not set(named.inside) <= set(asker.inside):
        text = f"you are asking from {asker.place}: send the token of its attempt, which"
        return Denied(401, f"{text} FALLBACKD_GATEWAY_TOKEN holds")
    return meet((asker, named))


def _by_token_alone(named: Authority | None) -> Authority | Denied:
    if named is None:
        return Denied(
            401, "the token is not the one of this endpoint: fallbackd-client gateway env"
        )
    return named if named.inside else Denied(401, f"the token is of no use: {named.why}")


def deny(method: str, headers: Headers, *, port: int | None) -> Denied | None:
    """Why nothing is answered to a web page; None: it is none."""
    named = dict(headers)
    if port is not None and named.get("host", "").lower() not in {
        f"{one}:{port}" for one in _LOCAL
    }:
        return Denied(403, f"the Host header must be 127.0.0.1:{port} or localhost:{port}")
    if "origin" in named:
        return Denied(403, "requests of web pages are refused")
    if method == "OPTIONS":
        return Denied(405, "OPTIONS is not answered: web pages cannot use this endpoint")
    return None


def has_token(headers: Headers, query: str, token: str) -> bool:
    """Whether any token of ours is sent, for whatever that is worth."""
    return any(
        hmac.compare_digest(one, token.encode()) or _attempt_of(one, token) is not None
        for one in _tokens(headers, query)
    )


OF_SERVERS = ""
"""
In place of an attempt: a helper server serves one after the other. It only says that the process
knows the gateway, which gives what those attempts may that it runs.
"""


def token_for(attempt: str, token: str) -> str:
    """
    What an attempt sends in place of the person's token. It needs no record, ends with the attempt
    and with the person's token, and does not reveal that one.
    """
    seal = hmac.new(token.encode(), f"attempt {attempt}".encode(), hashlib.sha256).hexdigest()
    return f"fallbackd-{attempt}-{seal}"


def _attempt_of(given: bytes, token: str) -> str | None:
    """The attempt whose token this is; None: of none."""
    attempt = given.decode("ascii", "replace").removeprefix("fallbackd-").rpartition("-")[0]
    return attempt if hmac.compare_digest(given, token_for(attempt, token).encode()) else None


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
