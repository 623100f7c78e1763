"""`session.list`: known sessions, the last used first."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import SessionView


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    limit: CountLimit | None = None


class Result(Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionView, ...] = ()


METHOD: Method[Params, Result] = Method(
    "session.list",
    params=Params,
    result=Result,
    read_only=True,
    summary="Known sessions, the last used first.",
)
