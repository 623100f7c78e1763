"""`classification.wrong`: a verdict was wrong. Keeps a private sample, offers a signature."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import Name, Note
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Its id or number; null: the last."""
    reason: Name | None = None
    """The right one, of the taxonomy; null: not known to the caller."""
    note: Note | None = None


class Result(Struct, frozen=True, kw_only=True):
    delegation: str
    attempt: str
    sample_path: str
    """A private file of this machine, redacted."""
    signature_toml: str
    """To be pasted into the configuration."""


METHOD: Method[Params, Result] = Method(
    "classification.wrong",
    params=Params,
    result=Result,
    read_only=False,
    summary="Note that a failure was misunderstood: keeps a sample, offers a signature.",
)
