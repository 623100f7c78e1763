"""Delegations, their questions and their sessions."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from fallbackd.api import shapes
from fallbackd.api.handler import ApiError, Handler
from fallbackd.api.host import Caller
from fallbackd.core import records
from fallbackd.core.authority import Authority, by_default
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import delegation_asking
from fallbackd.engine import feedback, standby
from fallbackd.engine.requests import NewWork
from fallbackd.lib.alike import alike
from fallbackd.ports.store import Selection
from fallbackd_client.wire import shapes as wire
from fallbackd_client.wire.methods.delegations import (
    DELEGATE,
    DELEGATION_CANCEL,
    DELEGATION_GET,
    DELEGATION_KEEP,
    DELEGATION_LIST,
    DELEGATION_REPLY,
    DELEGATION_RETRY,
    DELEGATION_STANDBY,
    DELEGATION_WAIT,
    DelegateParams,
    DelegationCancelParams,
    DelegationGetParams,
    DelegationKeepParams,
    DelegationListParams,
    DelegationListResult,
    DelegationReplyParams,
    DelegationRetryParams,
    DelegationStandbyParams,
    DelegationWaitParams,
)
from fallbackd_client.wire.methods.questions import (
    QUESTION_ANSWER,
    QUESTION_LIST,
    QuestionAnswerParams,
    QuestionListParams,
    QuestionListResult,
)
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
from fallbackd_client.wire.shapes import Delegation, Question, SessionView

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 100
MAX_BYTES = 8 * 1024 * 1024
"""Of all delegations in one answer."""
MAX_LOOKED_AT = 1000
"""Records that one call reads where most are none of those wanted: the next call continues."""
PROMPT_BYTES = 400
PROMPT_CHARS = 200


async def page(
    engine: "Engine", params: DelegationListParams, authority: Authority
) -> DelegationListResult:
    """
    Raises:
        ApiError: The cursor is none that an answer gave.
    """
    limit = params.limit or DEFAULT_LIMIT
    wanted = _wanted(params)
    is_picky = params.backend is not None or params.cwd is not None or not authority.is_person
    reach = max(limit, MAX_LOOKED_AT) if is_picky else limit
    found = await engine.delegations(wanted, limit=reach + 1)
    listed = [one for one in found[:reach] if authority.has_begun(one) and _fits(one, params)][
        :limit
    ]
    # Everything up to the last one that is shown has been looked at, or else up to `reach`.
    last = listed[-1] if len(listed) == limit else found[reach - 1] if len(found) > reach else None
    if params.brief:
        return DelegationListResult(
            lines=await _lines(engine, listed), next_cursor=_cursor(wanted, last, found)
        )
    shown, is_whole = _whole(listed)
    if not is_whole:
        last = listed[len(shown) - 1]
    return DelegationListResult(
        delegations=shown, truncated=not is_whole, next_cursor=_cursor(wanted, last, found)
    )


def _wanted(params: DelegationListParams) -> Selection:
    return Selection(
        session=None if params.session is None else SessionId(params.session),
        state=params.state,
        is_ended=params.ended,
        since_at=params.since_at,
        prefix=params.prefix or "",
        before=None if params.cursor is None else _place(params.cursor),
    )


async def _lines(
    engine: "Engine", listed: Sequence[records.Delegation]
) -> tuple[wire.DelegationLine, ...]:
    said = zip(listed, await prompts(engine, listed), strict=True)
    return tuple(shapes.delegation_line(one, prompt=prompt) for one, prompt in said)


async def prompts(engine: "Engine", listed: Sequence[records.Delegation]) -> list[str | None]:
    """Return the beginning of each prompt, with secrets masked; None: it is gone."""
    starts = await engine.prompt_starts(listed, max_bytes=PROMPT_BYTES)
    return [_start_of(starts.get(one.delegation)) for one in listed]


def _fits(one: records.Delegation, params: DelegationListParams) -> bool:
    if params.backend is not None and params.backend not in (one.active, one.served_by):
        return False
    if params.cwd is None:
        return True
    directory = params.cwd.rstrip("/")
    return f"{one.cwd}/".startswith(f"{directory}/")


def _whole(listed: list[records.Delegation]) -> tuple[tuple[wire.Delegation, ...], bool]:
    """Return as many as one answer takes, and whether that is all of them."""
    shown: list[wire.Delegation] = []
    size_bytes = 0
    for one in listed:
        shown.append(shapes.delegation(one))
        size_bytes += len(msgspec.json.encode(shown[-1]))
        if size_bytes > MAX_BYTES:
            break
    return tuple(shown), len(shown) == len(listed)


def _start_of(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())[:PROMPT_CHARS]


def _cursor(
    wanted: Selection, last: records.Delegation | None, found: Sequence[records.Delegation]
) -> str | None:
    """Null where nothing was found behind the last one."""
    if last is None or found[-1].delegation == last.delegation:
        return None
    at, name = wanted.place(last)
    return f"{at!r}:{name}"


def _place(cursor: str) -> tuple[float, DelegationId]:
    """
    Raises:
        ApiError: It is none that an answer gave.
    """
    at, _, name = cursor.partition(":")
    try:
        return float(at), DelegationId(name)
    except ValueError:
        raise ApiError(
            "invalid_params",
            f"unknown cursor {cursor[:100]!r}: use `next_cursor` of the answer before",
        ) from None


async def delegate(engine: "Engine", params: DelegateParams, caller: Caller) -> Delegation:
    work = alike(
        NewWork,
        params,
        chain=shapes.chain(params.chain),
        permissions=params.permissions or by_default(caller.authority),
        env=params.env or {},
        parent=None,
        client=caller.client,
        metadata=params.metadata or {},
    )
    begun = await engine.delegate(
        work, authority=caller.authority, is_wanted=lambda: not caller.has_hung_up
    )
    _follow(engine, begun, caller)
    found, is_over = await _waited(engine, begun, params)
    return await answer(engine, found, caller, is_over=is_over, strict=params.strict_wait)


def _follow(engine: "Engine", one: records.Delegation, caller: Caller) -> None:
    """Count the connection as a caller until it closes, where that matters."""
    if one.is_ended or one.orphan_s is None:
        return
    name, number = one.delegation, caller.number
    if not caller.is_open:
        engine.attendance.watch(name)
    elif engine.attendance.join(name, number):
        caller.on_close(lambda: engine.attendance.leave(name, number))


async def _waited(
    engine: "Engine", begun: records.Delegation, params: DelegateParams
) -> tuple[records.Delegation, bool]:
    """The delegation, and False where `wait_s` was over before what was waited for came."""
    if params.wait == "accepted":
        return begun, True
    if params.wait == "finished":
        return await engine.wait(begun.delegation, until="finished", timeout_s=params.wait_s)
    settle_s = params.settle_s
    if settle_s is None:
        settle_s = engine.settings.policy.defaults.settle_s
    if params.wait_s is not None and params.wait_s < settle_s:
        return await engine.wait(begun.delegation, until="settled", timeout_s=params.wait_s)
    found, _ = await engine.wait(begun.delegation, until="settled", timeout_s=settle_s)
    return found, True  # without an end after `settle_s` the work is as settled as it gets


async def answer(
    engine: "Engine",
    found: records.Delegation,
    caller: Caller,
    *,
    is_over: bool,
    strict: bool = False,
) -> Delegation:
    """
    Return the delegation as it is, also where the caller's own wait is over.

    Raises:
        ApiError: The wait is over and the caller wants an error then.
    """
    if not is_over and strict:
        raise ApiError(
            "wait_over",
            f"The wait is over; {found.delegation} is still {found.state}. Wait again with"
            " `delegation.wait`, or stop it with `delegation.cancel`.",
            data={"delegation": found.delegation, "state": found.state},
        )
    result = await _shown(engine, found, caller)
    return result if is_over else structs.replace(result, wait_over=True)


async def _shown(engine: "Engine", found: records.Delegation, caller: Caller) -> Delegation:
    shown = shapes.answered(found, await engine.kept_answer(found), path=caller.host.path)
    if (why := await engine.why_not_kept(found)) is not None:
        return structs.replace(shown, warnings=(*shown.warnings, why))
    return shown


async def delegation_get(
    engine: "Engine", params: DelegationGetParams, caller: Caller
) -> Delegation:
    found = await engine.delegation(params.delegation)
    shown = await _shown(engine, found, caller)
    return structs.replace(shown, prompt=(await prompts(engine, (found,)))[0])


async def delegation_list(
    engine: "Engine", params: DelegationListParams, caller: Caller
) -> DelegationListResult:
    return await page(engine, params, caller.authority)


async def delegation_retry(
    engine: "Engine", params: DelegationRetryParams, caller: Caller
) -> Delegation:
    again = await engine.request_of(params.delegation)
    return await _begun(engine, again, params.request_id, caller)


async def delegation_reply(
    engine: "Engine", params: DelegationReplyParams, caller: Caller
) -> Delegation:
    next_one = await engine.reply_to(params.delegation, params.prompt)
    return await _begun(engine, next_one, params.request_id, caller)


async def _begun(
    engine: "Engine", work: NewWork, request_id: str | None, caller: Caller
) -> Delegation:
    """Work that repeats what an earlier request says, as it was accepted."""
    work = structs.replace(
        work,
        wait="accepted",
        request_id=request_id,
        client=caller.client,
    )
    begun = await engine.delegate(
        work, authority=caller.authority, is_wanted=lambda: not caller.has_hung_up
    )
    return await _shown(engine, begun, caller)


async def delegation_wait(
    engine: "Engine", params: DelegationWaitParams, caller: Caller
) -> Delegation:
    _follow(engine, await engine.delegation(params.delegation), caller)
    found, is_over = await engine.wait(
        DelegationId(params.delegation), until="finished", timeout_s=params.timeout_s
    )
    return await answer(engine, found, caller, is_over=is_over, strict=params.strict_wait)


async def delegation_cancel(
    engine: "Engine", params: DelegationCancelParams, caller: Caller
) -> Delegation:
    if params.request_id is not None:
        found = await engine.cancel_request(params.request_id, caller.authority)
    elif params.session is not None:
        found = await engine.cancel_session(params.session, caller.authority)
    else:
        name = DelegationId(params.delegation or "")  # `normalised` has seen that there is one
        found = await engine.cancel(name, by=caller.authority.attempt)
    return await _shown(engine, found, caller)


async def delegation_keep(
    engine: "Engine", params: DelegationKeepParams, caller: Caller
) -> Delegation:
    found = await engine.delegation(params.delegation)
    if found.orphan_s is not None and not found.is_ended:
        await engine.keep(found.delegation)
        found = await engine.delegation(params.delegation)
    return await _shown(engine, found, caller)


async def delegation_standby(
    engine: "Engine", params: DelegationStandbyParams, caller: Caller
) -> Delegation:
    if params.starts and not caller.authority.is_person:
        raise ApiError(
            "not_permitted",
            "starts: only a person starts work whatever is known of its backends; you are asking"
            f" from {caller.authority.place}",
        )
    terms = msgspec.structs.asdict(params)
    changed = await standby.change(engine, terms.pop("delegation"), **terms)
    return await _shown(engine, changed, caller)


async def question_list(
    engine: "Engine", params: QuestionListParams, caller: Caller
) -> QuestionListResult:
    found = await feedback.questions(
        engine,
        session=params.session,
        only_open=not params.closed,
        limit=params.limit or DEFAULT_LIMIT,
    )
    if not caller.authority.is_person:
        active, begun = engine.snapshot().active, caller.authority.has_begun
        found = [one for one in found if one.delegation in active and begun(active[one.delegation])]
    return QuestionListResult(questions=tuple(shapes.question(one) for one in found))


async def question_answer(
    engine: "Engine", params: QuestionAnswerParams, caller: Caller
) -> Question:
    if not caller.authority.is_person and (asking := delegation_asking(params.question)):
        await engine.delegation(asking, caller.authority)
    uid = caller.peer_uid
    answered = await feedback.answer(
        engine,
        params.question,
        choice=params.choice,
        note=params.note,
        uid=os.geteuid() if uid is None else uid,  # besides root, only this user may connect
        pid=caller.peer_pid,
        attempt=caller.authority.attempt,
    )
    return shapes.question(answered)


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
            one, prompt=prompts.get(one.delegation), answer=await _start_of_answer(engine, one)
        )
        for one in made
    ]
    return structs.replace(shown, turns=tuple(turns))


async def _start_of_answer(engine: "Engine", one: records.Delegation) -> str | None:
    """Return the beginning of an answer, without secrets; None: it cannot be read any more."""
    text = await engine.text(one)
    return None if text is None else engine.world.redact(text)[:START_BYTES]


START_BYTES = 400
"""So much is shown of a prompt and of an answer."""


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
    Handler(DELEGATE, delegate, waits=True),
    Handler(DELEGATION_GET, delegation_get),
    Handler(DELEGATION_RETRY, delegation_retry),
    Handler(DELEGATION_REPLY, delegation_reply),
    Handler(DELEGATION_LIST, delegation_list),
    Handler(DELEGATION_WAIT, delegation_wait, waits=True),
    Handler(DELEGATION_CANCEL, delegation_cancel),
    Handler(DELEGATION_KEEP, delegation_keep),
    Handler(DELEGATION_STANDBY, delegation_standby),
    Handler(QUESTION_LIST, question_list),
    Handler(QUESTION_ANSWER, question_answer),
    Handler(SESSION_GET, session_get),
    Handler(SESSION_LIST, session_list),
    Handler(SESSION_END, session_end),
    Handler(SESSION_COMPACTED, session_compacted),
)
