"""`delegation.log`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.delegation_log import METHOD as METHOD
from fallbackd_client.wire.methods.delegation_log import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_BYTES = 65_536


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    part = await engine.log(
        params.delegation,
        attempt=params.attempt,
        offset=params.offset,
        max_bytes=params.max_bytes or DEFAULT_BYTES,
    )
    return Result(
        delegation=params.delegation,
        attempt=part.attempt,
        log_path=part.log_path,
        text=part.text,
        offset=part.offset,
        next_offset=part.next_offset,
        size_bytes=part.size_bytes,
        ended=part.ended,
    )
