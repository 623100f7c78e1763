"""`question.answer`. Who answers is what the kernel says of the connection."""

import os
from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.question_answer import METHOD as METHOD
from fallbackd_client.wire.methods.question_answer import Params
from fallbackd_client.wire.shapes import Question as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    uid = session.peer_uid
    answered = await engine.answer(
        params.question,
        choice=params.choice,
        note=params.note,
        uid=os.geteuid() if uid is None else uid,  # nobody else may connect, but root
        pid=session.peer_pid,
    )
    return shapes.question(answered)
