"""`explain`: the story of a delegation, with a sentence for each decision."""

from typing import TYPE_CHECKING

from fallbackd.core.state import PutStory
from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.explain import METHOD as METHOD
from fallbackd_client.wire.methods.explain import Params, Result, Step

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    found = await engine.delegation(params.delegation)
    story = await engine.story(params.delegation)
    return Result(
        delegation=found.delegation,
        state=found.state,
        requested=found.requested,
        served_by=found.served_by,
        decisions=tuple(_step(one) for one in story),
    )


def _step(one: PutStory) -> Step:
    return Step(
        at=one.at,
        event=one.event,
        text=one.outcome,
        attempt=one.attempt,
        candidates=tuple(shapes.verdict(each) for each in one.verdicts),
        policy=one.policy,
        evidence={"text": one.evidence} if one.evidence else None,
        changes=one.changes,
        effects=one.effects,
    )
