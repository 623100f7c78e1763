"""Questions: choices that wait for a person."""

import os
from typing import TYPE_CHECKING, Any

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core.questions import delegation_asking
from fallbackd_client.wire.methods.questions import (
    QUESTION_ANSWER,
    QUESTION_LIST,
    QuestionAnswerParams,
    QuestionListParams,
    QuestionListResult,
)
from fallbackd_client.wire.shapes import Question

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


DEFAULT_LIMIT = 100


async def question_list(
    engine: "Engine", params: QuestionListParams, caller: Caller
) -> QuestionListResult:
    found = await engine.questions(
        session=params.session, only_open=not params.closed, limit=params.limit or DEFAULT_LIMIT
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
    answered = await engine.answer(
        params.question,
        choice=params.choice,
        note=params.note,
        uid=os.geteuid() if uid is None else uid,  # besides root, only this user may connect
        pid=caller.peer_pid,
        attempt=caller.authority.attempt,
    )
    return shapes.question(answered)


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(QUESTION_LIST, question_list),
    Handler(QUESTION_ANSWER, question_answer),
)
