"""`delegation.wait`: wait for the end of a delegation, or for a question."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name, WaitS
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation as Result


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    timeout_s: WaitS | None = None
    """Bounds only the waiting; the work continues."""
    strict_wait: bool = False
    """An error (-32007) when the time is over, instead of the delegation with `wait_over`."""


METHOD: Method[Params, Result] = Method(
    "delegation.wait",
    params=Params,
    result=Result,
    read_only=True,
    summary="Wait for the end of a delegation, or until a question opens.",
)
