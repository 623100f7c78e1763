"""What was used, by backend and period."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Instant, Name, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import UsageRow


class UsageParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    backend: Name | None = None
    since_at: Instant | None = None


class UsageResult(Struct, frozen=True, kw_only=True):
    usage: tuple[UsageRow, ...] = ()
    warnings: tuple[str, ...] = ()
    """What was asked for and has no effect."""


USAGE: Method[UsageParams, UsageResult] = Method(
    "usage",
    params=UsageParams,
    result=UsageResult,
    read_only=True,
    summary="What was used, by backend and period.",
)


METHODS = (USAGE,)
