"""Signatures, by which an output is understood, and what it means."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import (
    CalendarInstant,
    Name,
    Note,
    ReasonWord,
    SignatureSourceWord,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Evidence, Failure

ClassifyResult = Failure | None
"""Null: no failure."""


class ClassifyParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    evidence: Evidence
    """The output to understand."""
    backend: Name | None = None
    """The backend that it comes from; its kind is used."""
    kind: Name | None = None
    """A kind of backend, such as `codex` or `openai-http`; `generic` for any."""
    now_at: CalendarInstant | None = None
    """The time at which it was printed, for stated reset times; null: now."""
    timezone: Name | None = None
    """IANA name of the zone of stated times without one; null: the machine's."""


CLASSIFY: Method[ClassifyParams, Failure | None] = Method(
    "classify",
    params=ClassifyParams,
    result=ClassifyResult,
    read_only=True,
    who="any",
    errors=("unknown",),
    summary="What an output means, as a failure or null.",
    example=(
        {
            "kind": "codex",
            "evidence": {
                "text": "You've hit your usage limit. Try again in 1 hour.",
                "stream": "stderr",
                "exit_code": 1,
            },
        },
        {
            "reason": "usage_limit",
            "scope": "quota:chatgpt-plan",
            "rotate_credential": True,
            "hop": True,
            "marks_health": True,
            "stated_reset_s": 3600.0,
            "wait_s": 3600.0,
            "confidence": "structured",
            "signature": "codex/usage-limit",
            "evidence": "You've hit your usage limit. Try again in 1 hour.",
        },
    ),
)


class Weighed(Struct, frozen=True, kw_only=True):
    """A word of the text, or a property of its lines, and what it adds to a margin."""

    feature: str
    """`whole`, `last` or `shape`, then the feature as it was hashed."""
    weight: float
    """What it adds: above 0 for, below 0 against."""


class LikelyReason(Struct, frozen=True, kw_only=True):
    reason: ReasonWord
    """A word of the taxonomy."""
    share: float
    """How likely it is, given that it is a failure: 0 to 1."""


class ClassificationExplainResult(Struct, frozen=True, kw_only=True):
    failure: Failure | None
    """What `classify` answers."""
    because: str
    """What decided, in a sentence."""
    statements: tuple[str, ...] = ()
    """Lines that count as said by the program itself, redacted."""
    rule: str | None = None
    """Id of the signature that fits without the model; null: none."""
    rule_reason: ReasonWord | None = None
    """Its reason."""
    margin: float = 0.0
    """Of the learned model: above 0 rather a failure."""
    threshold: float = 0.0
    """What the margin has to exceed where the exit status is unknown."""
    failure_share: float = 0.0
    """The margin as a probability."""
    reasons: tuple[LikelyReason, ...] = ()
    """The likeliest first."""
    for_failure: tuple[Weighed, ...] = ()
    """Features that decide between failure and none, the weightiest first."""
    for_reason: tuple[Weighed, ...] = ()
    """Features that decide for or against the likeliest reason."""


CLASSIFICATION_EXPLAIN: Method[ClassifyParams, ClassificationExplainResult] = Method(
    "classification.explain",
    params=ClassifyParams,
    result=ClassificationExplainResult,
    read_only=True,
    who="person",
    errors=("unknown",),
    summary="What an output means, and what decided: statements, signature, features.",
    example=(
        {"evidence": {"text": "no more prompts today", "stream": "stderr", "exit_code": 1}},
        {
            "failure": {"reason": "usage_limit", "confidence": "text"},
            "because": "no signature decides; the learned model names the reason",
            "statements": ["no more prompts today"],
            "margin": 0.6,
            "threshold": 0.47,
            "failure_share": 0.93,
            "reasons": [{"reason": "usage_limit", "share": 0.81}],
            "for_failure": [{"feature": "whole 'w no more'", "weight": 0.05}],
            "for_reason": [{"feature": "whole 'w today'", "weight": 0.04}],
        },
    ),
)


class ClassificationWrongParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation."""
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Id or number of the attempt; null: the last one."""
    reason: Name | None = None
    """The right reason of the taxonomy; null: unknown."""
    note: Note | None = None
    """A note that is kept with the sample."""


class ClassificationWrongResult(Struct, frozen=True, kw_only=True):
    delegation: str
    """Id of the delegation."""
    attempt: str
    """The attempt."""
    sample_path: str
    """Private file with the redacted sample."""
    row_path: str | None = None
    """File with the redacted output and its right reason alone, to send; null: no reason given."""
    signature_toml: str
    """A signature to paste into the configuration."""


CLASSIFICATION_WRONG: Method[ClassificationWrongParams, ClassificationWrongResult] = Method(
    "classification.wrong",
    params=ClassificationWrongParams,
    result=ClassificationWrongResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("unknown", "draining"),
    summary="Note that a failure was misunderstood: keeps a sample, offers a signature.",
    example=(
        {"delegation": "d4f0c2a91b7e", "reason": "usage_limit"},
        {
            "delegation": "d4f0c2a91b7e",
            "attempt": "d4f0c2a91b7e.1",
            "sample_path": "/home/me/.local/state/fallbackd/samples/d4f0c2a91b7e.1.json",
            "row_path": "/home/me/.local/state/fallbackd/samples/d4f0c2a91b7e.1.jsonl",
            "signature_toml": '[[signatures]]\nid = "mine-1"\n',
        },
    ),
)


class ClassificationTrainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class TrainedSample(Struct, frozen=True, kw_only=True):
    attempt: str
    """Id of the attempt that the sample is of."""
    right: ReasonWord
    """The reason that a person gave."""
    before: ReasonWord | None
    """What the shipped weights say; null: no failure."""
    after: ReasonWord | None
    """What the new weights say."""
    unseen: ReasonWord | None
    """What weights say that were learned from the other samples: a fair guess of the use."""
    signature: str = ""
    """What decides now. Rules and structured errors are not changed by weights."""


class ClassificationTrainResult(Struct, frozen=True, kw_only=True):
    path: str | None
    """Private file of weights, in use from now on; null: none, for there was nothing to learn."""
    samples: tuple[TrainedSample, ...] = ()
    """What was learned from."""
    passed_over: int = 0
    """Samples without a right reason, or with one that weights do not know."""


CLASSIFICATION_TRAIN: Method[ClassificationTrainParams, ClassificationTrainResult] = Method(
    "classification.train",
    params=ClassificationTrainParams,
    result=ClassificationTrainResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Learn from the samples of wrong verdicts: private weights on top of the shipped ones.",
    example=(
        {},
        {
            "path": "/home/me/.local/state/fallbackd/weights.json",
            "samples": [
                {
                    "attempt": "d4f0c2a91b7e.1",
                    "right": "usage_limit",
                    "before": "unknown",
                    "after": "usage_limit",
                    "unseen": "usage_limit",
                    "signature": "model/usage_limit",
                }
            ],
            "passed_over": 0,
        },
    ),
)


class SignaturesListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Name | None = None
    """Only of this kind of backend; null: of all."""


class Signature(Struct, frozen=True, kw_only=True):
    """One signature. It fits by its pattern, by one of its codes, or by its status."""

    id: str
    """Id of the signature."""
    reason: ReasonWord
    """The reason that it stands for."""
    source: SignatureSourceWord
    """`yours`, `vendor` or `common`; tried in this order."""
    kind: str | None = None
    """Kind of backend; null: every kind."""
    detail: str | None = None
    """A narrower word."""
    pattern: str = ""
    """Regular expression that matches the output."""
    streams: tuple[str, ...] = ()
    """Streams that it is looked for in; empty: all."""
    codes: tuple[str, ...] = ()
    """Error codes that match."""
    statuses: tuple[int, ...] = ()
    """HTTP statuses that match."""
    exits: tuple[int, ...] = ()
    """Exit statuses that match."""


class SignaturesListResult(Struct, frozen=True, kw_only=True):
    signatures: tuple[Signature, ...] = ()
    """The signatures, in the order in which they are tried."""
    kinds: tuple[str, ...] = ()
    """Every kind that `classify` knows."""


SIGNATURES_LIST: Method[SignaturesListParams, SignaturesListResult] = Method(
    "signatures.list",
    params=SignaturesListParams,
    result=SignaturesListResult,
    read_only=True,
    who="person",
    summary="The signatures by which failures are known, in the order in which they are tried.",
    example=(
        {"kind": "codex"},
        {
            "signatures": [
                {
                    "id": "codex/usage-limit",
                    "reason": "usage_limit",
                    "source": "vendor",
                    "kind": "codex",
                }
            ],
            "kinds": ["claude", "codex", "gemini", "generic", "opencode"],
        },
    ),
)


METHODS = (
    CLASSIFY,
    CLASSIFICATION_EXPLAIN,
    CLASSIFICATION_TRAIN,
    CLASSIFICATION_WRONG,
    SIGNATURES_LIST,
)
