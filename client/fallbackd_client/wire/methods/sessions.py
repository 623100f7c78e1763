"""Sessions: conversations whose backend is remembered."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import SessionView


class SessionGetParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    """Id of the session."""


SESSION_GET: Method[SessionGetParams, SessionView] = Method(
    "session.get",
    params=SessionGetParams,
    result=SessionView,
    read_only=True,
    who="own",
    errors=("unknown",),
    summary="One session.",
    example=(
        {"session": "s-review"},
        {
            "session": "s-review",
            "original": "codex",
            "current": "opencode",
            "depth": 1,
            "last_active_at": 1767268842.5,
        },
    ),
)


class SessionListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    limit: CountLimit | None = None
    """At most this many, the last used first."""


class SessionListResult(Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionView, ...] = ()
    """The sessions, the last used first."""


SESSION_LIST: Method[SessionListParams, SessionListResult] = Method(
    "session.list",
    params=SessionListParams,
    result=SessionListResult,
    read_only=True,
    who="own",
    summary="Known sessions, the last used first.",
    example=(
        {"limit": 10},
        {
            "sessions": [
                {
                    "session": "s-review",
                    "original": "codex",
                    "current": "opencode",
                    "depth": 1,
                    "last_active_at": 1767268842.5,
                }
            ]
        },
    ),
)


class SessionEndParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    """Id of the session."""


class SessionEndResult(Struct, frozen=True, kw_only=True):
    session: str
    """Id of the session."""
    ended: bool
    """True; an unknown session is an error."""


SESSION_END: Method[SessionEndParams, SessionEndResult] = Method(
    "session.end",
    params=SessionEndParams,
    result=SessionEndResult,
    read_only=False,
    who="own",
    promises="record",
    errors=("unknown", "busy", "draining"),
    summary="Forget a session.",
    example=({"session": "s-review"}, {"session": "s-review", "ended": True}),
)


class SessionCompactedParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    """Id of the session."""


SESSION_COMPACTED: Method[SessionCompactedParams, SessionView] = Method(
    "session.compacted",
    params=SessionCompactedParams,
    result=SessionView,
    read_only=False,
    who="own",
    promises="record",
    errors=("unknown", "busy", "draining"),
    summary="A conversation was compacted: models and depth stay, history and notices go.",
    example=(
        {"session": "s-review"},
        {
            "session": "s-review",
            "original": "codex",
            "current": "opencode",
            "depth": 0,
            "last_active_at": 1767268842.5,
        },
    ),
)


METHODS = (
    SESSION_GET,
    SESSION_LIST,
    SESSION_END,
    SESSION_COMPACTED,
)
