"""`session.compacted`: the caller compacted its conversation."""

from msgspec import Struct

from fallbackd_client.wire.bounds import SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import SessionView as Result


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName


METHOD: Method[Params, Result] = Method(
    "session.compacted",
    params=Params,
    result=Result,
    read_only=False,
    summary="A conversation was compacted: models and depth stay, history and notices go.",
)
