"""Calls of the gateway, as callers see them."""

from typing import TYPE_CHECKING, Any

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.engine.exchanges import KEPT, PREFIX, ExchangeRecord, ExchangeStep
from fallbackd.engine.requests import Unknown
from fallbackd_client.wire.methods.exchanges import (
    EXCHANGE_LIST,
    Exchange,
    ExchangeListParams,
    ExchangeListResult,
)
from fallbackd_client.wire.methods.explaining import ExplainResult, Step

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 50


async def exchange_list(
    engine: "Engine", params: ExchangeListParams, caller: Caller
) -> ExchangeListResult:
    found = engine.exchanges.newest(limit=params.limit or DEFAULT_LIMIT)
    return ExchangeListResult(
        exchanges=tuple(_line(one) for one in found), known=len(engine.exchanges)
    )


def find(engine: "Engine", name: str) -> ExchangeRecord | None:
    """
    None: it is the name of something else.

    Raises:
        Unknown: It has the form of one, and is on record no more.
    """
    found = engine.exchanges.find(name)
    if found is None and name.startswith(PREFIX):
        text = (
            f"no gateway call {name!r} is known: the last {KEPT} since the start of the daemon are"
        )
        raise Unknown(f"{text}; see `fallbackd-client gateway list`")
    return found


def explained(one: ExchangeRecord) -> ExplainResult:
    return ExplainResult(
        delegation=one.exchange,
        state=one.state,
        requested=one.requested,
        asked_by=one.asked_by,
        served_by=one.served_by,
        usage=shapes.usage(one.usage),
        decisions=tuple(_step(each) for each in one.steps),
    )


def _step(one: ExchangeStep) -> Step:
    failure = one.failure
    evidence = None
    if failure is not None:
        evidence = {
            "reason": failure.reason.value,
            "scope": failure.scope,
            "signature": failure.signature,
            "confidence": failure.confidence,
            "text": failure.evidence,
        }
    return Step(
        at=one.at,
        event=one.event,
        text=one.text,
        candidates=tuple(shapes.verdict(each) for each in one.candidates),
        evidence=evidence,
    )


def _line(one: ExchangeRecord) -> Exchange:
    return Exchange(
        exchange=one.exchange,
        api=one.api,
        asked=one.asked,
        asked_by=one.asked_by,
        state=one.state,
        requested=one.requested,
        served_by=one.served_by,
        model=one.model,
        reason=one.reason,
        usage=shapes.usage(one.usage),
        calls=sum(step.event == "Asked" for step in one.steps),
        began_at=one.began_at,
        ended_at=one.ended_at,
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(EXCHANGE_LIST, exchange_list),)
