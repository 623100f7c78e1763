"""Explanations: delegations, their logs, calls of the gateway."""

from typing import TYPE_CHECKING, Any

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core import records
from fallbackd.core.decision import PutStory
from fallbackd.engine.exchanges import KEPT, PREFIX, ExchangeRecord, ExchangeStep
from fallbackd.engine.requests import Unknown
from fallbackd_client.wire.methods.exchanges import (
    EXCHANGE_LIST,
    Exchange,
    ExchangeListParams,
    ExchangeListResult,
)
from fallbackd_client.wire.methods.explaining import (
    DELEGATION_LOG,
    EXPLAIN,
    DelegationLogParams,
    DelegationLogResult,
    ExplainParams,
    ExplainResult,
    Step,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_BYTES = 65_536


async def delegation_log(
    engine: "Engine", params: DelegationLogParams, caller: Caller
) -> DelegationLogResult:
    part = await engine.log(
        params.delegation,
        attempt=params.attempt,
        offset=params.offset,
        max_bytes=params.max_bytes or DEFAULT_BYTES,
        as_text=params.form == "text",
    )
    return DelegationLogResult(
        delegation=params.delegation,
        attempt=part.attempt,
        log_path=part.log_path,
        text=part.text,
        offset=part.offset,
        next_offset=part.next_offset,
        size_bytes=part.size_bytes,
        ended=part.ended,
    )


async def explain(engine: "Engine", params: ExplainParams, caller: Caller) -> ExplainResult:
    exchange = find(engine, params.delegation)
    if exchange is not None:
        return explained(exchange)
    found = await engine.delegation(params.delegation)
    story = await engine.story(params.delegation)
    return ExplainResult(
        delegation=found.delegation,
        state=found.state,
        requested=found.requested,
        asked_by=found.asked_by,
        served_by=found.served_by,
        usage=shapes.usage(found.usage),
        questions=tuple(shapes.question(one) for one in found.questions),
        decisions=tuple(_step(one, found) for one in story),
        warnings=found.warnings,
    )


def _step(one: PutStory, found: records.Delegation) -> Step:
    return Step(
        at=one.at,
        event=one.event,
        text=one.outcome,
        attempt=one.attempt,
        candidates=tuple(shapes.verdict(each) for each in one.verdicts),
        policy=one.policy,
        evidence=_evidence(one, found),
        changes=one.changes,
        effects=one.effects,
    )


def _evidence(one: PutStory, found: records.Delegation) -> dict[str, Any] | None:  # of any shape
    """Return the output, and the signature by which it was understood."""
    if not one.evidence:
        return None
    failures = [
        each.failure
        for each in found.attempts
        if each.failure is not None
        and each.failure.evidence == one.evidence
        and one.attempt in (None, each.attempt)
    ]
    if not failures:
        return {"text": one.evidence}
    last = failures[-1]
    return {
        "reason": last.reason.value,
        "scope": last.scope,
        "signature": last.signature,
        "confidence": last.confidence,
        "text": one.evidence,
    }


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
    Find a call of the gateway; None: it is the name of something else.

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
        decisions=tuple(_step_of_exchange(each) for each in one.steps),
    )


def _step_of_exchange(one: ExchangeStep) -> Step:
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


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(DELEGATION_LOG, delegation_log),
    Handler(EXPLAIN, explain),
    Handler(EXCHANGE_LIST, exchange_list),
)
