"""`signatures.list`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.signatures_list import METHOD as METHOD
from fallbackd_client.wire.methods.signatures_list import Params, Result, Signature

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    return Result(
        signatures=tuple(
            Signature(
                id=one.rule.id,
                reason=one.rule.reason.value,
                source=one.source,
                kind=one.kind,
                detail=one.rule.detail,
                pattern=one.rule.pattern,
                streams=one.rule.streams,
                codes=one.rule.codes,
                statuses=one.rule.statuses,
                exits=one.rule.exits,
            )
            for one in engine.signatures(params.kind)
        ),
        kinds=engine.signature_kinds(),
    )
