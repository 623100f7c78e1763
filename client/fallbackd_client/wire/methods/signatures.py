"""What an output means, and the signatures by which it is understood."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import Instant, Name, Note
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Evidence, Failure

ClassifyResult = Failure | None
"""Null: no failure."""


class ClassifyParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    evidence: Evidence
    backend: Name | None = None
    kind: Name | None = None
    """A profile or API kind: codex, opencode, openai-http, generic, …"""
    now_at: Instant | None = None
    timezone: Name | None = None
    """IANA name, for times that are stated without a zone; null: the machine's."""


CLASSIFY: Method[ClassifyParams, Failure | None] = Method(
    "classify",
    params=ClassifyParams,
    result=ClassifyResult,
    read_only=True,
    summary="What an output means, as a failure or null.",
)


class ClassificationWrongParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Its id or number; null: the last."""
    reason: Name | None = None
    """The right one, of the taxonomy; null: not known to the caller."""
    note: Note | None = None


class ClassificationWrongResult(Struct, frozen=True, kw_only=True):
    delegation: str
    attempt: str
    sample_path: str
    """A private file of this machine, redacted."""
    signature_toml: str
    """To be pasted into the configuration."""


CLASSIFICATION_WRONG: Method[ClassificationWrongParams, ClassificationWrongResult] = Method(
    "classification.wrong",
    params=ClassificationWrongParams,
    result=ClassificationWrongResult,
    read_only=False,
    summary="Note that a failure was misunderstood: keeps a sample, offers a signature.",
)


class SignaturesListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Name | None = None
    """A profile or API kind; null: of all."""


class Signature(Struct, frozen=True, kw_only=True):
    """One signature. It fits by its pattern, by one of its codes, or by its status."""

    id: str
    reason: str
    source: str
    """yours, vendor, common: in this order they are tried."""
    kind: str | None = None
    """Null: of every kind."""
    detail: str | None = None
    pattern: str = ""
    streams: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    exits: tuple[int, ...] = ()


class SignaturesListResult(Struct, frozen=True, kw_only=True):
    signatures: tuple[Signature, ...] = ()
    kinds: tuple[str, ...] = ()
    """Every kind that `classify` knows."""


SIGNATURES_LIST: Method[SignaturesListParams, SignaturesListResult] = Method(
    "signatures.list",
    params=SignaturesListParams,
    result=SignaturesListResult,
    read_only=True,
    summary="The signatures by which failures are known, in the order in which they are tried.",
)


METHODS = (
    CLASSIFY,
    CLASSIFICATION_WRONG,
    SIGNATURES_LIST,
)
