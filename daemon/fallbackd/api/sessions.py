"""Sessions: conversations whose backend is remembered."""

from typing import TYPE_CHECKING, Any

from msgspec import structs

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core.records import Delegation
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
from fallbackd_client.wire.remembered import SessionView

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def session_get(engine: "Engine", params: SessionGetParams, caller: Caller) -> SessionView:
    found = await engine.session(params.session)
    shown = shapes.session(found)
    if not found.past.turns:
        return shown
    known = [await engine.store.delegation(one) for one in found.past.turns]
    made = [one for one in known if one is not None and caller.authority.has_begun(one)]
    prompts = await engine.prompt_starts(made, max_bytes=START_BYTES)
    turns = [
        shapes.session_turn(
            one, prompt=prompts.get(one.delegation), answer=await _start(engine, one)
        )
        for one in made
    ]
    return structs.replace(shown, turns=tuple(turns))


async def _start(engine: "Engine", one: Delegation) -> str | None:
    """How an answer begins, without secrets; None: it cannot be read any more."""
    text = await engine.text(one)
    return None if text is None else engine.world.redact(text)[:START_BYTES]


START_BYTES = 400
"""So much is shown of a prompt and of an answer."""
DEFAULT_LIMIT = 100


async def session_list(
    engine: "Engine", params: SessionListParams, caller: Caller
) -> SessionListResult:
    found = await engine.sessions(limit=params.limit or DEFAULT_LIMIT)
    own = [one for one in found if caller.authority.has_begun(one)]
    return SessionListResult(sessions=tuple(shapes.session(one) for one in own))


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
