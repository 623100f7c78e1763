"""`classify`: what an output means. Changes nothing."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Instant, Name
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Evidence, Failure

Result = Failure | None
"""Null: no failure."""


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    evidence: Evidence
    backend: Name | None = None
    kind: Name | None = None
    """A profile or API kind: codex, opencode, openai-http, generic, …"""
    now_at: Instant | None = None
    timezone: Name | None = None
    """IANA name, for times that are stated without a zone; null: the machine's."""


METHOD: Method[Params, Failure | None] = Method(
    "classify",
    params=Params,
    result=Result,
    read_only=True,
    summary="What an output means, as a failure or null.",
)
