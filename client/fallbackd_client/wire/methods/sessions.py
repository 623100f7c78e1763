"""Sessions: conversations whose backend is remembered."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import SessionView


class SessionGetParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName


SESSION_GET: Method[SessionGetParams, SessionView] = Method(
    "session.get",
    params=SessionGetParams,
    result=SessionView,
    read_only=True,
    summary="One session.",
)


class SessionListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    limit: CountLimit | None = None


class SessionListResult(Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionView, ...] = ()


SESSION_LIST: Method[SessionListParams, SessionListResult] = Method(
    "session.list",
    params=SessionListParams,
    result=SessionListResult,
    read_only=True,
    summary="Known sessions, the last used first.",
)


class SessionEndParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName


class SessionEndResult(Struct, frozen=True, kw_only=True):
    session: str
    ended: bool
    """True; an unknown session is an error."""


SESSION_END: Method[SessionEndParams, SessionEndResult] = Method(
    "session.end",
    params=SessionEndParams,
    result=SessionEndResult,
    read_only=False,
    summary="Forget a session.",
)


class SessionCompactedParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName


SESSION_COMPACTED: Method[SessionCompactedParams, SessionView] = Method(
    "session.compacted",
    params=SessionCompactedParams,
    result=SessionView,
    read_only=False,
    summary="A conversation was compacted: models and depth stay, history and notices go.",
)


METHODS = (
    SESSION_GET,
    SESSION_LIST,
    SESSION_END,
    SESSION_COMPACTED,
)
