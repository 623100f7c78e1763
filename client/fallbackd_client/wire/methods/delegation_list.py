"""`delegation.list`: delegations, newest first."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, DelegationState, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    state: DelegationState | None = None
    limit: CountLimit | None = None


class Result(Struct, frozen=True, kw_only=True):
    delegations: tuple[Delegation, ...] = ()
    truncated: bool = False
    """There are more within `limit`; together they are too large for one answer."""


METHOD: Method[Params, Result] = Method(
    "delegation.list",
    params=Params,
    result=Result,
    read_only=True,
    summary="Delegations, newest first.",
)
