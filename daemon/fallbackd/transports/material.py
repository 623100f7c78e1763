"""What a source of a credential holds: a bare secret, or a document of a login with one inside."""

import base64
import datetime
import json
from typing import Any

from msgspec import Struct

from fallbackd.ports.secrets import SecretProblem

EXPIRY_NAMES = ("expires_at", "expiresAt", "expiry_date", "expiry", "expires", "Expiration")
"""As the login files of agent CLIs and the helpers of clouds name it."""
RENEWAL_NAMES = ("refresh_token", "refreshToken")
ACCOUNT_NAMES = ("account_id", "accountId", "account_uuid", "accountUuid")
"""Of the account that logged in: it stays when the tokens are renewed."""
_MILLISECONDS = 1e11
"""A larger number of seconds would be in the year 5138."""


class Material(Struct, frozen=True, kw_only=True):
    secret: str
    expires_at: float | None = None
    """Unix seconds, by the source itself."""
    renewable: bool = False
    """Its owner renews it by itself: that it is over says nothing."""
    account: str | None = None
    """Whose login it is, where the source says so: the same on all machines."""

    def __repr__(self) -> str:
        return f"Material(expires_at={self.expires_at})"


def material_of(text: str, *, field: str | None, where: str) -> Material:
    """
    Read a source's text: the field of a JSON document, else its first line.

    Raises:
        SecretProblem: There is no secret in it, or none that a header could carry.
    """
    text = text.strip()
    if not text:
        raise SecretProblem(f"{where} is empty")
    if field is not None or text[0] == "{":
        return _from_document(text, field, where)
    secret = text.splitlines()[0].strip()
    claims = _claims(secret)
    return Material(
        secret=_carried(secret, where),
        expires_at=_instant(claims.get("exp")),
        account=_subject(claims),
    )


def _from_document(text: str, field: str | None, where: str) -> Material:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise SecretProblem(f"{where} begins like JSON and is none") from None
    if not isinstance(document, dict):
        raise SecretProblem(f"{where} is JSON without names, so it has no field {field!r}")
    if field is None:
        raise SecretProblem(
            f'{where} is JSON: say where in it the secret is, as field = "name" or "outer.name"'
        )
    *outer, last = field.split(".")
    nearest: dict[str, Any] = document  # any JSON: files of other programs
    for name in outer:
        below = nearest.get(name)
        nearest = below if isinstance(below, dict) else {}
    value = nearest.get(last)
    if not isinstance(value, str) or not value.strip():
        raise SecretProblem(f"{where} has no text at its field {field!r}")
    return _described(_carried(value.strip(), where), nearest)


def _described(secret: str, nearest: dict[str, Any]) -> Material:
    """
    Args:
        nearest: The object of the secret, which may tell more about it.
    """
    claims = _claims(secret)
    stated = [at for name in EXPIRY_NAMES if (at := _instant(nearest.get(name))) is not None]
    named = [one for name in ACCOUNT_NAMES if isinstance(one := nearest.get(name), str) and one]
    return Material(
        secret=secret,
        expires_at=stated[0] if stated else _instant(claims.get("exp")),
        account=named[0] if named else _subject(claims),
        renewable=any(isinstance(nearest.get(name), str) for name in RENEWAL_NAMES),
    )


def _carried(secret: str, where: str) -> str:
    if not secret.isascii() or not secret.isprintable():
        raise SecretProblem(f"{where} holds characters that no key has")
    return secret


def _instant(value: object) -> float | None:
    """Unix seconds of a number, of its text, or of an ISO 8601 time (without a zone: UTC)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = _number(value) or _iso(value)
    if not isinstance(value, int | float) or not 0 < value < 1e15:
        return None
    return value / 1000 if value > _MILLISECONDS else float(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _iso(text: str) -> float | None:
    try:
        read = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)).timestamp()


def _claims(secret: str) -> dict[str, Any]:  # any JSON
    """What a JSON Web Token says of itself; nothing where it is none. Source: RFC 7519, 4.1."""
    parts = secret.split(".")
    if len(parts) != 3 or not secret.startswith("ey"):
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _subject(claims: dict[str, Any]) -> str | None:
    """Unique for each issuer of tokens."""
    subject, issuer = claims.get("sub"), claims.get("iss")
    return f"{issuer} {subject}" if isinstance(subject, str) and isinstance(issuer, str) else None
