"""`delegation.wait`: wait for the end of a delegation, or for a question."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name, WaitS
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation as Result


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    timeout_s: WaitS | None = None
    """Bounds only the waiting; the work goes on."""


METHOD: Method[Params, Result] = Method(
    "delegation.wait",
    params=Params,
    result=Result,
    read_only=True,
    summary="Wait for the end of a delegation, or until a question opens.",
)
