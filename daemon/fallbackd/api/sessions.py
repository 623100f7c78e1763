"""Sessions: conversations whose backend is remembered."""

from typing import TYPE_CHECKING, Any

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd_client.wire.methods.sessions import (
    SESSION_COMPACTED,
    SESSION_END,
    SESSION_GET,
    SESSION_LIST,
    SessionCompactedParams,
    SessionEndParams,
    SessionEndResult,
    SessionGetParams,
    SessionListParams,
    SessionListResult,
)
from fallbackd_client.wire.shapes import SessionView

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def session_get(engine: "Engine", params: SessionGetParams, caller: Caller) -> SessionView:
    return shapes.session(await engine.session(params.session))


DEFAULT_LIMIT = 100


async def session_list(
    engine: "Engine", params: SessionListParams, caller: Caller
) -> SessionListResult:
    found = await engine.sessions(limit=params.limit or DEFAULT_LIMIT)
    return SessionListResult(sessions=tuple(shapes.session(one) for one in found))


async def session_end(
    engine: "Engine", params: SessionEndParams, caller: Caller
) -> SessionEndResult:
    await engine.end_session(params.session)
    return SessionEndResult(session=params.session, ended=True)


async def session_compacted(
    engine: "Engine", params: SessionCompactedParams, caller: Caller
) -> SessionView:
    await engine.compact_session(params.session)
    return shapes.session(await engine.session(params.session))


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(SESSION_GET, session_get),
    Handler(SESSION_LIST, session_list),
    Handler(SESSION_END, session_end),
    Handler(SESSION_COMPACTED, session_compacted),
)
