"""`signatures.list`: by which words, codes and statuses failures are known."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Name | None = None
    """A profile or API kind; null: of all."""


class Signature(Struct, frozen=True, kw_only=True):
    """One signature. It fits by its pattern, by one of its codes, or by its status."""

    id: str
    reason: str
    source: str
    """yours, vendor, common: in this order they are tried."""
    kind: str | None = None
    """Null: of every kind."""
    detail: str | None = None
    pattern: str = ""
    streams: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    exits: tuple[int, ...] = ()


class Result(Struct, frozen=True, kw_only=True):
    signatures: tuple[Signature, ...] = ()
    kinds: tuple[str, ...] = ()
    """Every kind that `classify` knows."""


METHOD: Method[Params, Result] = Method(
    "signatures.list",
    params=Params,
    result=Result,
    read_only=True,
    summary="The signatures by which failures are known, in the order in which they are tried.",
)
