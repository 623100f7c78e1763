"""`classification.wrong`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.classification_wrong import METHOD as METHOD
from fallbackd_client.wire.methods.classification_wrong import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    attempt, sample = await engine.mark_wrong(
        params.delegation, attempt=params.attempt, reason=params.reason, note=params.note
    )
    return Result(
        delegation=params.delegation,
        attempt=attempt,
        sample_path=str(sample.path),
        signature_toml=sample.signature,
    )
