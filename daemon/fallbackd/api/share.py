"""Health shared with other machines."""

from typing import TYPE_CHECKING, Any

from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd_client.wire.methods import share as wire
from fallbackd_client.wire.methods.share import (
    SHARE_STATUS,
    SHARE_TEST,
    ShareStatusParams,
    ShareStatusResult,
    ShareTestParams,
    ShareTestResult,
    ShareTestStep,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

PRESENT_S = 90.0
"""A machine says every 30 s that it is there."""


def sharing(engine: "Engine") -> wire.Sharing | None:
    if engine.peers is None:
        return None
    one = engine.peers.shown()
    return wire.Sharing(
        state=one.state,
        group=one.group,
        machine=one.machine,
        since_at=one.since_at,
        problem=one.problem,
        warning=one.warning,
        machines=sum(each.seen_ago_s <= PRESENT_S for each in one.machines),
        offset_ms=None if one.offset_s is None else round(one.offset_s * 1000, 1),
        outbox=one.outbox,
        ignored=one.ignored,
        advice=one.advice,
        arbiter_away=one.is_arbiter_away,
        alone_at=one.alone_at,
        alone_scopes=one.alone_scopes,
    )


async def share_status(
    engine: "Engine", params: ShareStatusParams, caller: Caller
) -> ShareStatusResult:
    if engine.peers is None:
        return ShareStatusResult()
    one = engine.peers.shown()
    return ShareStatusResult(
        share=sharing(engine),
        machines=tuple(
            wire.SharingMachine(
                name=each.name, version=each.version, pid=each.pid, seen_ago_s=each.seen_ago_s
            )
            for each in one.machines
        ),
        scopes=one.scopes,
    )


async def share_test(engine: "Engine", params: ShareTestParams, caller: Caller) -> ShareTestResult:
    steps = () if engine.peers is None else await engine.peers.test()
    return ShareTestResult(
        steps=tuple(
            ShareTestStep(step=one.step, ok=one.ok, detail=one.detail, took_s=one.took_s)
            for one in steps
        )
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(SHARE_STATUS, share_status),
    Handler(SHARE_TEST, share_test),
)
