"""`question.list`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.question_list import METHOD as METHOD
from fallbackd_client.wire.methods.question_list import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 100


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.questions(
        session=params.session, only_open=not params.closed, limit=params.limit or DEFAULT_LIMIT
    )
    return Result(questions=tuple(shapes.question(one) for one in found))
