"""Classification of output, and the signatures by which it is understood."""

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core.reasons import Reason
from fallbackd.engine import feedback
from fallbackd.engine.judging import off_the_loop
from fallbackd_client.wire.methods.signatures import (
    CLASSIFICATION_EXPLAIN,
    CLASSIFICATION_TRAIN,
    CLASSIFICATION_WRONG,
    CLASSIFY,
    SIGNATURES_LIST,
    ClassificationExplainResult,
    ClassificationTrainParams,
    ClassificationTrainResult,
    ClassificationWrongParams,
    ClassificationWrongResult,
    ClassifyParams,
    ClassifyResult,
    LikelyReason,
    Signature,
    SignaturesListParams,
    SignaturesListResult,
    TrainedSample,
    Weighed,
)

if TYPE_CHECKING:
    from fallbackd.classify.model import Deciding
    from fallbackd.engine.api import Engine


async def classify(engine: "Engine", params: ClassifyParams, caller: Caller) -> ClassifyResult:
    evidence = shapes.evidence(params.evidence)
    judge = partial(
        feedback.judged,
        engine,
        evidence,
        backend=params.backend,
        kind=params.kind,
        now_at=params.now_at,
        timezone=params.timezone,
    )
    return shapes.failure(await off_the_loop(evidence, judge))


async def classification_explain(
    engine: "Engine", params: ClassifyParams, caller: Caller
) -> ClassificationExplainResult:
    found, said = await anyio.to_thread.run_sync(
        partial(
            feedback.explained,
            engine,
            shapes.evidence(params.evidence),
            backend=params.backend,
            kind=params.kind,
            now_at=params.now_at,
            timezone=params.timezone,
        )
    )
    return ClassificationExplainResult(
        failure=shapes.failure(found),
        because=said.because,
        statements=said.statements,
        rule=said.rule,
        rule_reason=None if said.rule_reason is None else said.rule_reason.value,
        margin=said.margin,
        threshold=said.threshold,
        failure_share=said.failure_share,
        reasons=tuple(LikelyReason(reason=r.value, share=share) for r, share in said.reasons),
        for_failure=tuple(_weighed(one) for one in said.for_failure),
        for_reason=tuple(_weighed(one) for one in said.for_reason),
    )


def _weighed(one: "Deciding") -> Weighed:
    return Weighed(feature=one.feature, weight=one.weight)


async def classification_train(
    engine: "Engine", params: ClassificationTrainParams, caller: Caller
) -> ClassificationTrainResult:
    made = await feedback.train(engine)

    def word(reason: Reason | None) -> str | None:
        return None if reason is None else reason.value

    return ClassificationTrainResult(
        path=None if made.path is None else str(made.path),
        samples=tuple(
            TrainedSample(
                attempt=one.attempt,
                right=one.right.value,
                before=word(one.before),
                after=word(one.after),
                unseen=word(one.unseen),
                signature=one.signature,
            )
            for one in made.tried
        ),
        passed_over=made.passed_over,
    )


async def classification_wrong(
    engine: "Engine", params: ClassificationWrongParams, caller: Caller
) -> ClassificationWrongResult:
    attempt, sample = await feedback.note_wrong(
        engine, params.delegation, attempt=params.attempt, reason=params.reason, note=params.note
    )
    return ClassificationWrongResult(
        delegation=params.delegation,
        attempt=attempt,
        sample_path=str(sample.path),
        row_path=None if sample.row is None else str(sample.row),
        signature_toml=sample.signature,
    )


async def signatures_list(
    engine: "Engine", params: SignaturesListParams, caller: Caller
) -> SignaturesListResult:
    return SignaturesListResult(
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
            for one in feedback.known(engine.settings, engine.world.signatures, params.kind)
        ),
        kinds=tuple(sorted(engine.world.signatures)),
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(CLASSIFY, classify),
    Handler(CLASSIFICATION_EXPLAIN, classification_explain),
    Handler(CLASSIFICATION_TRAIN, classification_train),
    Handler(CLASSIFICATION_WRONG, classification_wrong),
    Handler(SIGNATURES_LIST, signatures_list),
)
